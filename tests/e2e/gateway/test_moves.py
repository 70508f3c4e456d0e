"""What must hold while routes change: sequences, streams, and what was told to every server."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gateway_rig as rig
import numpy as np
import pytest
import tritonclient.grpc as tg
import tritonclient.http as th
import tritonclient.utils.shared_memory as shm
from background import until
from gateway_clients import Talk, floats, request_log, taken, tensor
from tritonclient.utils import InferenceServerException

from controlplane.domain.errors import EngineError, GatewayError
from controlplane.domain.fleet import Backend, Labels, Role, Route, Server, ServerSpec, ServerState
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes
from controlplane.gateway.haproxy import HaproxyGateway
from controlplane.runtime.controller.probes import Outcome, send_canary
from controlplane.triton.own import prove

PATIENCE_S = 15.0
"""For one inference, on a host that is busy with others."""

Running = tuple[HaproxyGateway, rig.Ports]
Pair = dict[str, rig.Triton]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    models = {"echo": "echo", "repeat": "repeat", "total": "total", "brief": "total", "slow": "slow"}
    with rig.tritons(tmp_path_factory.mktemp("tritons"), one=models, two=models) as running:
        yield running


def said(talk: Talk) -> tuple[float, str]:
    """The next answer's value and its server."""
    result = talk.take()
    return float(result.as_numpy("OUTPUT").flat[0]), result.as_numpy("SERVER").flat[0].decode()


def nothing(counters: object) -> None:
    """Leave nothing out of what clients read."""


def a_server(at: Backend, endpoint: str) -> Server:
    """What a launcher would say of a Triton."""
    spec = ServerSpec(Labels("f", "h", "p", Role.ACTIVE, "r"), "/", (endpoint,), "cpu-0", 50)
    return Server("1", spec, ServerState.RUNNING, at.host, at.http_port, at.grpc_port, 1)


def test_a_sequence_ends_where_it_began(gateway: Running, pair: Pair) -> None:
    made, ports = gateway
    one, two = pair["one"].backend, pair["two"].backend
    made.commit({"total": Route((one,))})

    def step(module: Any, value: float, number: int, **flags: bool) -> tuple[float, str]:
        port = ports.http if module is th else ports.grpc
        with module.InferenceServerClient(f"{rig.HOST}:{port}") as client:
            result = client.infer("total", tensor(module, floats(value)[None]), sequence_id=number, **flags)
            return float(result.as_numpy("OUTPUT")[0, 0]), result.as_numpy("SERVER")[0, 0].decode()

    assert step(th, 1, 5, sequence_start=True) == (1, "one")
    made.commit({"total": Route((two,))})
    assert made.in_flight(one).total == 1
    assert step(tg, 2, 5) == (3, "one")
    assert step(tg, 7, 6, sequence_start=True) == (7, "two")
    assert step(th, 3, 5, sequence_end=True) == (6, "one")
    until(lambda: made.in_flight(one).total == 0)
    assert step(tg, 1, 6, sequence_end=True) == (8, "two")


def test_a_silent_sequence_is_waited_for_as_long_as_its_server_remembers_it(
    gateway: Running, pair: Pair
) -> None:
    made, ports = gateway
    one, two = pair["one"].backend, pair["two"].backend
    made.commit({"brief": Route((two,))})
    with tg.InferenceServerClient(f"{rig.HOST}:{ports.grpc}") as client:
        values = tensor(tg, floats(7)[None])
        said_at = time.monotonic()
        client.infer("brief", values, sequence_id=6, sequence_start=True)
        made.commit({"brief": Route((one,))})
        until(lambda: made.in_flight(two).total == 0)
        assert time.monotonic() >= said_at + rig.FORGETFUL_S["brief"]
        with pytest.raises(InferenceServerException, match="START"):
            client.infer("brief", values, sequence_id=6)
    # What was refused may have been a sequence's, so it is awaited as one.
    until(lambda: made.in_flight(one).total == 0)


def test_the_guards_own_inferences_disturb_no_sequence(gateway: Running, pair: Pair) -> None:
    made, ports = gateway
    one = pair["one"].backend
    made.commit({"total": Route((one,))})
    server = a_server(one, "total")
    with tg.InferenceServerClient(f"{rig.HOST}:{ports.grpc}") as client:
        values = tensor(tg, floats(3)[None])
        client.infer("total", values, sequence_id=7, sequence_start=True)
        prove(server, "total", nothing, deadline_s=PATIENCE_S)
        assert send_canary(server, server.spec.endpoints, {}, nothing, PATIENCE_S).reason == ""
        total = client.infer("total", values, sequence_id=7, sequence_end=True).as_numpy("OUTPUT")
        assert total[0, 0] == 6


@pytest.mark.parametrize("endpoint", ["repeat", "echo", "slow", "none"])
def test_an_inference_proves_a_model_of_any_kind(pair: Pair, endpoint: str) -> None:
    server = a_server(pair["one"].backend, endpoint)
    outcome = send_canary(server, server.spec.endpoints, {}, nothing, PATIENCE_S).outcome
    if endpoint == "none":
        assert outcome is Outcome.FAILED
        with pytest.raises(EngineError, match=r"none failed: .*unknown model"):
            prove(server, endpoint, nothing, deadline_s=PATIENCE_S)
    else:
        assert outcome is Outcome.ANSWERED
        prove(server, endpoint, nothing, deadline_s=PATIENCE_S)


def test_a_pool_cannot_hold_sequences(gateway: Running, pair: Pair) -> None:
    made, _ = gateway
    with pytest.raises(GatewayError, match="not a pool"):
        made.commit({"total": Route((pair["one"].backend, pair["two"].backend))})


def test_answers_keep_their_order_across_a_redirect(gateway: Running, pair: Pair) -> None:
    made, ports = gateway
    one, two = pair["one"].backend, pair["two"].backend
    made.commit({"repeat": Route((one,)), "slow": Route((one,))})
    with tg.InferenceServerClient(f"{rig.HOST}:{ports.grpc}") as client:
        talk = Talk(client)
        client.async_stream_infer("repeat", tensor(tg, floats(10, 0.05)))
        assert said(talk) == (0, "one")
        made.commit({"repeat": Route((two,)), "slow": Route((one,))})
        client.async_stream_infer("repeat", tensor(tg, floats(3)))
        assert [said(talk) for _ in range(9)] == [(i, "one") for i in range(1, 10)]
        assert [said(talk) for _ in range(3)] == [(i, "two") for i in range(3)]
        begun = rig.noted(pair["two"].slow, "begun")
        with rig.held(pair["one"]):
            client.async_stream_infer("slow", tensor(tg, floats(rig.HELD)))
            until(lambda: made.in_flight(one).total == 1)
            made.commit({"repeat": Route((two,)), "slow": Route((two,))})
            client.async_stream_infer("slow", tensor(tg, floats(0)))
            until(lambda: rig.noted(pair["two"].slow, "begun") > begun)
            assert made.in_flight(one).total == 1
            assert talk.answers.empty()
        assert [said(talk) for _ in range(2)] == [(rig.HELD, "one"), (0, "two")]
        until(lambda: made.in_flight(one).total == 0)
        client.stop_stream()


def test_an_idle_stream_lets_go_of_the_old_server(gateway: Running, pair: Pair) -> None:
    made, ports = gateway
    one, two = pair["one"].backend, pair["two"].backend
    made.commit({"repeat": Route((one,))})
    with tg.InferenceServerClient(f"{rig.HOST}:{ports.grpc}") as client:
        talk = Talk(client)
        client.async_stream_infer("repeat", tensor(tg, floats(1)))
        assert said(talk) == (0, "one")
        # While it is routed to, or its silence would be taken for a hang.
        until(lambda: made.in_flight(one).total == 0)
        made.commit({"repeat": Route((two,))})
        until(lambda: made.in_flight(one).total == 0)
        client.async_stream_infer("repeat", tensor(tg, floats(1)))
        assert said(talk) == (0, "two")
        client.stop_stream()


def test_who_joins_knows_the_shared_memory(gateway: Running, pair: Pair, home: Path) -> None:
    made, ports = gateway
    made.commit({"echo": Route((pair["one"].backend,))})
    key = f"/gw-join-{time.monotonic_ns()}"
    region = shm.create_shared_memory_region("joined", key, 16)
    try:
        with th.InferenceServerClient(f"{rig.HOST}:{ports.http}") as client:
            client.register_system_shared_memory("joined", key, 16)
            client.update_log_settings({"log_verbose_level": 1})
            rig.replaced(GatewayPaths.of(home / "gateway"), processes.FACADE)
            made.start(rig.options(ports))
            made.commit({"echo": Route((pair["two"].backend,))})
            with th.InferenceServerClient(f"{rig.HOST}:{pair['two'].http_port}") as direct:
                assert [r["name"] for r in direct.get_system_shared_memory_status()] == ["joined"]
                assert direct.get_log_settings()["log_verbose_level"] == 1
            shm.set_shared_memory_region(region, [floats(1, 2, 3, 4)])
            given = th.InferInput("INPUT", [4], "FP32")
            given.set_shared_memory("joined", 16)
            result = client.infer("echo", [given])
            np.testing.assert_array_equal(result.as_numpy("OUTPUT"), floats(1, 2, 3, 4))
            client.unregister_system_shared_memory("joined")
            client.update_log_settings({"log_verbose_level": 0})
    finally:
        shm.destroy_shared_memory_region(region)
        for triton in pair.values():
            with th.InferenceServerClient(f"{rig.HOST}:{triton.http_port}") as direct:
                direct.unregister_system_shared_memory()
                direct.update_log_settings({"log_verbose_level": 0})


@pytest.mark.parametrize("module", [th, tg])
def test_what_one_server_refuses_nobody_keeps(gateway: Running, pair: Pair, module: Any) -> None:
    made, ports = gateway
    made.commit({"echo": Route((pair["one"].backend,)), "slow": Route((pair["two"].backend,))})
    key = f"/gw-all-{time.monotonic_ns()}"
    region = shm.create_shared_memory_region("mine", key, 16)
    try:
        with th.InferenceServerClient(f"{rig.HOST}:{pair['two'].http_port}") as two:
            two.register_system_shared_memory("mine", key, 16)
            port = ports.http if module is th else ports.grpc
            with (
                module.InferenceServerClient(f"{rig.HOST}:{port}") as client,
                pytest.raises(InferenceServerException, match="nothing was changed anywhere"),
            ):
                client.register_system_shared_memory("mine", key, 16)
            two.unregister_system_shared_memory()
        with th.InferenceServerClient(f"{rig.HOST}:{pair['one'].http_port}") as one:
            assert one.get_system_shared_memory_status() == []
    finally:
        shm.destroy_shared_memory_region(region)


def test_a_pool_shares_the_load_and_adds_its_statistics(gateway: Running, pair: Pair) -> None:
    made, ports = gateway
    made.commit({"slow": Route((pair["one"].backend, pair["two"].backend))})
    load = rig.Load(ports, "slow", seconds_of_work=rig.HELD)

    def counted() -> set[int]:
        with (
            th.InferenceServerClient(f"{rig.HOST}:{ports.http}") as over_http,
            tg.InferenceServerClient(f"{rig.HOST}:{ports.grpc}") as over_grpc,
        ):
            told = [over_http.get_inference_statistics(*which) for which in ((), ("slow",), ("slow", "1"))]
            messages = [
                over_grpc.get_inference_statistics(*which) for which in ((), ("slow",), ("slow", "1"))
            ]
            return {int(t["model_stats"][0]["inference_count"]) for t in told} | {
                message.model_stats[0].inference_count for message in messages
            }

    def owed() -> list[int]:
        return [made.in_flight(triton.backend).total for triton in pair.values()]

    async def run() -> None:
        with rig.held(*pair.values()):
            task = asyncio.create_task(load.at_once(20))
            await asyncio.to_thread(until, lambda: sum(owed()) == 20)
            # Two backends choose, each among what it has under way itself.
            assert min(await asyncio.to_thread(owed)) >= 6
        await task

    (before,) = counted()
    asyncio.run(run())
    assert load.failed() == []
    until(lambda: counted() == {before + 20})


@pytest.mark.parametrize("module", [th, tg])
def test_counters_do_not_run_backwards_in_a_redirect(gateway: Running, pair: Pair, module: Any) -> None:
    made, ports = gateway
    with module.InferenceServerClient(f"{rig.HOST}:{ports.http if module is th else ports.grpc}") as client:

        def counted() -> int:
            said = client.get_inference_statistics("echo")
            return int(
                said["model_stats"][0]["inference_count"]
                if module is th
                else said.model_stats[0].inference_count
            )

        made.commit({"echo": Route((pair["one"].backend,))})
        for turn, server in enumerate(("one", "two", "one")):
            made.commit({"echo": Route((pair[server].backend,))})
            before = counted()
            for _ in range(3 - turn):
                client.infer("echo", tensor(module, floats(1)))
            until(lambda before=before, turn=turn: counted() == before + 3 - turn)


def test_an_open_stream_goes_on_at_the_shadow(gateway: Running, pair: Pair, tmp_path: Path) -> None:
    made, ports = gateway
    with rig.tritons(tmp_path, dying={"echo": "echo"}) as doomed:
        made.commit({"echo": Route((doomed["dying"].backend,), pair["two"].backend)})
        with tg.InferenceServerClient(f"{rig.HOST}:{ports.grpc}") as client:
            talk = Talk(client)
            client.async_stream_infer("echo", tensor(tg, floats(1)))
            assert said(talk) == (1, "dying")
            doomed["dying"].kill()
            client.async_stream_infer("echo", tensor(tg, floats(2)))
            answer, error = talk.answers.get(timeout=60)
            if error is not None:  # it was sent before the facade saw the connection break
                # HAProxy may reset the client's stream before it has passed the facade's status on.
                assert str(error.status()) in {"StatusCode.UNAVAILABLE", "StatusCode.CANCELLED"}
            else:
                assert answer.as_numpy("SERVER")[0] == b"two"
            client.stop_stream()

        def a_new_one() -> str | None:
            with tg.InferenceServerClient(f"{rig.HOST}:{ports.grpc}") as client:
                talk = Talk(client)
                client.async_stream_infer("echo", tensor(tg, floats(3)))
                answer, error = talk.answers.get(timeout=60)
                client.stop_stream()
            return None if error else answer.as_numpy("SERVER")[0].decode()

        # What failed as it was written does not say that nobody is there.
        if error is not None:
            until(lambda: a_new_one() is not None)
        assert a_new_one() == "two"


@pytest.mark.parametrize("endpoint", ["echo", "repeat"], ids=["plain", "decoupled"])
def test_a_stream_leaves_a_server_that_has_unloaded_its_model(
    gateway: Running, pair: Pair, tmp_path: Path, endpoint: str
) -> None:
    """As one that ends does while its port is still open."""
    made, ports = gateway
    with rig.tritons(tmp_path, ending={"other": "echo"}) as doomed:
        made.commit({endpoint: Route((pair["two"].backend,))})
        made.commit({endpoint: Route((doomed["ending"].backend,), pair["two"].backend)})
        with (
            request_log(made) as log,
            tg.InferenceServerClient(f"{rig.HOST}:{ports.grpc}") as client,
        ):
            talk = Talk(client)
            client.async_stream_infer(endpoint, tensor(tg, floats(1)))
            _, error = talk.answers.get(timeout=60)
            assert "server is ending" in str(error)
            client.async_stream_infer(endpoint, tensor(tg, floats(1)))
            assert said(talk)[1] == "two"
            client.stop_stream()
            assert [record.unloaded for record in taken(log, 2)] == [True, False]


@pytest.mark.parametrize("module", [th, tg])
def test_a_compressed_request_of_an_unloaded_model_goes_to_the_shadow(
    gateway: Running, pair: Pair, tmp_path: Path, module: Any
) -> None:
    made, ports = gateway
    how = {"compression_algorithm": "gzip"} if module is tg else {"request_compression_algorithm": "gzip"}
    # Large enough that gRPC compresses it.
    asked = tensor(module, floats(*[1.0] * 1000))
    with (
        rig.tritons(tmp_path, ending={"other": "echo"}) as doomed,
        module.InferenceServerClient(f"{rig.HOST}:{ports.grpc if module is tg else ports.http}") as client,
    ):
        made.commit({"echo": Route((doomed["ending"].backend,), pair["two"].backend)})
        assert client.infer("echo", asked, **how).as_numpy("SERVER")[0] == b"two"
        made.commit({"echo": Route((doomed["ending"].backend,))})
        with pytest.raises(InferenceServerException, match="server is ending"):
            client.infer("echo", asked, **how)


def test_no_server_at_all(gateway: Running) -> None:
    made, ports = gateway
    made.commit({"echo": Route((Backend("gone", rig.HOST, 1, 1),))})
    with (
        th.InferenceServerClient(f"{rig.HOST}:{ports.http}") as over_http,
        tg.InferenceServerClient(f"{rig.HOST}:{ports.grpc}") as over_grpc,
    ):
        assert over_http.is_server_live()
        # All that is planned has a route: one dead model takes no fleet out of its balancer.
        assert over_http.is_server_ready()
        assert over_grpc.is_server_ready()
        assert not over_http.is_model_ready("echo")
        with pytest.raises(InferenceServerException, match="Connection refused"):
            over_grpc.is_model_ready("echo")
        with pytest.raises(InferenceServerException, match="no server of this model is ready"):
            over_http.infer("echo", tensor(th, floats(1)))
        with pytest.raises(InferenceServerException) as caught:
            over_grpc.infer("echo", tensor(tg, floats(1)))
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
        made.commit({})
        with pytest.raises(InferenceServerException, match="no server runs in this fleet"):
            over_grpc.get_log_settings()
        with pytest.raises(InferenceServerException, match="unknown model"):
            over_grpc.infer("echo", tensor(tg, floats(1)))
