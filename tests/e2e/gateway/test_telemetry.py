import asyncio
import contextlib
import os
import signal
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import gateway_rig as rig
import numpy as np
import pytest
import tritonclient.grpc as tg
from background import Background, stopped, until
from gateway_clients import Talk, floats, request_log, taken, tensor
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from controlplane.domain.errors import GatewayError
from controlplane.domain.fleet import Backend, Route
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes
from controlplane.gateway.haproxy import HaproxyGateway
from controlplane.monitor.client import AGAIN_S, GatewayTelemetry, RequestLog, local
from controlplane.monitor.records import Record
from controlplane.monitor.state import KEEP_S

Running = tuple[HaproxyGateway, rig.Ports]
Pair = dict[str, rig.Triton]


def test_every_request_is_seen_with_its_server_and_its_time(fresh: Running, pair: Pair) -> None:
    made, ports = fresh
    made.commit({"slow": Route((pair["one"].backend,))})
    telemetry = GatewayTelemetry(made.telemetry_socket)
    load = rig.Load(ports, "slow", seconds_of_work=0.01)

    def answered(server: str) -> bool:
        kinds = [outcome.kind for outcome in load.answered(server, 0.0)]
        return min(map(kinds.count, ("http", "grpc", "stream"))) >= 5

    with rig.under_load(partial(load.unary, 20), partial(load.stream, 0.1, 1)):
        until(lambda: answered("one"))
        made.commit({"slow": Route((pair["two"].backend,))})
        until(lambda: answered("two"))
    assert load.failed() == []
    until(lambda: telemetry.windows(KEEP_S)["slow"].requests >= len(load.outcomes))
    window = telemetry.windows(KEEP_S)["slow"]
    assert (window.requests, window.errors) == (len(load.outcomes), 0)
    assert telemetry.counts().lost == 0
    seen = statistics.median(1000 * (o.ended - o.started) for o in load.outcomes)
    assert window.p50_ms is not None
    assert 10 <= window.p50_ms < 5 * seen, "the model's own time, and milliseconds"


def test_a_monitor_that_is_killed_misses_nothing(fresh: Running, pair: Pair, tmp_path: Path) -> None:
    made, ports = fresh
    made.commit({"echo": Route((pair["one"].backend,))})
    places = GatewayPaths.of(tmp_path / "gateway")
    load = rig.Load(ports)
    telemetry = GatewayTelemetry(made.telemetry_socket)
    with Following(made.telemetry_socket) as following:
        until(following.hears)
        asyncio.run(load.at_once(20))
        until(lambda: following.heard == 20)
        (monitor,) = processes.find(places, processes.MONITOR)
        following.longest_s = 0.0
        os.kill(monitor, signal.SIGKILL)
        until(lambda: monitor not in processes.find(places, processes.MONITOR))
        asyncio.run(load.at_once(20))
        until(lambda: processes.find(places, processes.MONITOR) not in ((), (monitor,)))
        until(lambda: seen(telemetry) == 20)
        until(following.hears)
        prompt = following.longest_s < AGAIN_S
        asyncio.run(load.at_once(20))
        # What came meanwhile is handed to a follower that is back as soon as it is to be.
        until(lambda: following.heard == 60 if prompt else following.heard >= 40)
        until(lambda: seen(telemetry) == 40)
    assert load.failed() == []
    assert telemetry.counts().lost == 0


def seen(telemetry: GatewayTelemetry) -> int:
    """Requests that the monitor has seen; none where it is not there."""
    with contextlib.suppress(GatewayError):
        return sum(window.requests for window in telemetry.windows(60).values())
    return 0


class Following(Background):
    """A follower of the log, which looks all the time."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._log = RequestLog(partial(local, path))
        self.heard = 0
        self.longest_s = 0.0
        """From one look to the next."""

    def hears(self) -> bool:
        return self._log.heard_since_s < time.monotonic() - 0.01

    def _run(self) -> None:
        looked = time.monotonic()
        while not self._stop.wait(0.005):
            self.heard += len(self._log.take())
            now = time.monotonic()
            self.longest_s, looked = max(self.longest_s, now - looked), now
        self._log.close()


def test_refusals_and_dead_servers_are_told_apart(fresh: Running, pair: Pair) -> None:
    made, ports = fresh
    made.commit({"echo": Route((pair["one"].backend,)), "gone": Route((Backend("gone", rig.HOST, 1, 1),))})
    telemetry = GatewayTelemetry(made.telemetry_socket)
    wrong = tensor(tg, np.ones(1, dtype=np.int32), "INT32")
    with tg.InferenceServerClient(f"{rig.HOST}:{ports.grpc}") as client:
        for endpoint in ("echo", "gone", "gone"):
            with pytest.raises(Exception, match=r"data-type|no server|lost"):
                client.infer(endpoint, wrong)
        client.get_model_metadata("echo")
    until(lambda: telemetry.counts().received == 4)
    told = {endpoint: (w.requests, w.errors) for endpoint, w in telemetry.windows(60).items()}
    assert told == {"echo": (1, 0), "gone": (2, 2)}


def test_what_a_server_held_when_it_died_is_counted_though_haproxy_logs_nothing(
    fresh: Running, pair: Pair, tmp_path: Path
) -> None:
    made, ports = fresh
    telemetry = GatewayTelemetry(made.telemetry_socket)
    with rig.tritons(tmp_path, doomed={"echo": "echo"}) as running:
        doomed = running["doomed"]
        made.commit({"echo": Route((doomed.backend,), pair["two"].backend)})
        load = rig.Load(ports)

        until(lambda: telemetry.counts().unlogged is not None)
        # HAProxy keeps the connection that these make. On a new one it would send again what is lost.
        asyncio.run(load.at_once(4))
        # Calls that it has not read: its end resets their connection.
        os.kill(doomed.process.pid, signal.SIGSTOP)
        with rig.under_load(lambda _: load.at_once(20)):
            until(lambda: made.in_flight(doomed.backend).total + len(load.outcomes) == 24)
            doomed.kill()
    # Mostly some are lost, and without a line; how many hangs on the order in which HAProxy ends its streams.
    until(lambda: telemetry.windows(60)["echo"].requests == len(load.outcomes))
    assert telemetry.windows(60)["echo"].errors == len(load.failed())
    assert telemetry.counts().lost == 0


def test_what_a_client_leaves_is_taken_back_from_the_gateway_and_told(
    home: Path, gateway: Running, pair: Pair
) -> None:
    made, ports = gateway
    one = pair["one"]
    made.commit({"slow": Route((one.backend,))})
    load = rig.Load(ports, "slow", rig.HELD)

    async def leave() -> None:
        both = asyncio.create_task(load.at_once(2))
        await asyncio.to_thread(until, lambda: made.in_flight(one.backend).total == 2)
        both.cancel()
        await asyncio.to_thread(until, lambda: made.in_flight(one.backend).total == 0)

    with request_log(made) as log, rig.held(one):
        asyncio.run(leave())
        found = taken(log, 2)
    assert all(record.abandoned and record.held for record in found)
    assert {record.server for record in found} == {one.backend.instance}


@pytest.mark.parametrize("asked", ["slow", "repeat"], ids=["plain", "decoupled"])
def test_a_streamed_message_that_its_client_leaves_is_told(gateway: Running, pair: Pair, asked: str) -> None:
    made, ports = gateway
    one = pair["one"]
    made.commit({asked: Route((one.backend,))})
    with request_log(made) as log, stopped(one.process.pid):
        with tg.InferenceServerClient(f"{rig.HOST}:{ports.grpc}") as client:
            Talk(client)
            client.async_stream_infer(asked, tensor(tg, floats(1)))
            until(lambda: made.in_flight(one.backend).total > 0)
            client.stop_stream(cancel_requests=True)
        found = taken(log, 1)
    assert [(r.endpoint, r.server, r.abandoned, r.held) for r in found] == [
        (asked, one.backend.instance, True, True)
    ]


def metrics(ports: rig.Ports, below: str = "") -> dict[str, list[Sample]]:
    """The samples of a page by their family."""
    with urllib.request.urlopen(f"http://{rig.HOST}:{ports.metrics}/metrics{below}", timeout=60) as page:
        return {one.name: one.samples for one in text_string_to_metric_families(page.read().decode())}


def test_one_page_of_metrics_for_the_fleet(fresh: Running, pair: Pair) -> None:
    made, ports = fresh
    one = pair["one"]
    named = replace(one.backend, server="fleet.W1-1.active.abc")
    made.commit({"echo": Route((named,))})
    load = rig.Load(ports)
    asyncio.run(load.at_once(20))
    telemetry = GatewayTelemetry(made.telemetry_socket)
    until(lambda: sum(w.requests for w in telemetry.windows(60).values()) == len(load.outcomes))
    families: dict[str, list[Sample]] = {}
    successes: list[Sample] = []

    def read() -> float:
        families.update(metrics(ports))
        every = families.get("nv_inference_request_success", [])
        successes[:] = [s for s in every if s.labels["model"] == "echo"]
        return sum(s.value for s in successes)

    # A Triton counts a request after it has answered.
    until(lambda: read() >= len(load.outcomes))
    ours = families["trisect_requests"]
    assert sum(s.value for s in ours) == len(load.outcomes)
    assert {(s.labels["partition"], s.labels["role"]) for s in ours} == {("W1-1", "active")}
    assert {s.labels["protocol"] for s in ours} == {"http", "grpc"}
    slots = families["trisect_gateway_slot_info"]
    assert {s.labels["endpoint"] for s in slots if s.labels["proxy"] == "g_0"} == {"echo"}
    assert [(s.labels["partition"], s.labels["role"]) for s in successes] == [("W1-1", "active")]
    assert families["trisect_telemetry_lines_lost"][0].value == 0


def test_haproxys_own_metrics_are_on_the_same_port(fresh: Running, pair: Pair) -> None:
    made, ports = fresh
    made.commit({"echo": Route((pair["one"].backend,))})
    load = rig.Load(ports)
    asyncio.run(load.at_once(20))

    found = metrics(ports, "/haproxy")
    responses = found["haproxy_server_http_responses"]
    answered = {proxy: 0.0 for proxy in sorted({s.labels["proxy"] for s in responses})}
    for sample in responses:
        answered[sample.labels["proxy"]] += sample.value
    assert answered.keys() == {"h_0", "g_0", "facade_http", "facade_grpc"}, "servers in use only"
    assert answered["h_0"] + answered["g_0"] >= len(load.outcomes)
    assert "haproxy_process_start_time_seconds" in found
    assert "haproxy_backend_status" not in found
    assert "haproxy_backend_status" in metrics(ports, "/haproxy?scope=backend")


def test_a_routed_model_that_is_unknown_means_that_its_server_ends(fresh: Running, pair: Pair) -> None:
    made, ports = fresh
    one = Route((pair["one"].backend,))
    array = tensor(tg, floats(1))
    found: list[Record] = []

    def over_grpc(endpoint: str, version: str = "") -> str:
        with tg.InferenceServerClient(f"{rig.HOST}:{ports.grpc}") as client:
            try:
                client.infer(endpoint, array, model_version=version)
            except tg.InferenceServerException as error:
                return f"{error.status()} {error.message()}"
        return "OK"

    def over_http(path: str) -> str:
        body = b'{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[1],"data":[1.0]}]}'
        url = f"http://{rig.HOST}:{ports.http}/v2/models/{path}/infer"
        try:
            return str(urllib.request.urlopen(url, body, timeout=60).status)
        except urllib.error.HTTPError as error:
            return f"{error.code} {error.read().decode()}"

    def unloaded(ask: Callable[[str], str]) -> str:
        """Before the health check of the model, which its server lacks, has failed three times."""
        while True:
            made.commit({"echo": one})
            made.commit({"echo": one, "ghost": one})
            if "no server" not in (said := ask("ghost")):
                return said

    with request_log(made) as log:
        assert unloaded(over_grpc) == "StatusCode.UNAVAILABLE the model's server is ending"
        assert unloaded(over_http).startswith("503 ")
        until(lambda: (found.extend(log.take()), sum(r.unloaded for r in found) == 2)[1])
        assert {r.server for r in found if r.unloaded} == {pair["one"].backend.instance}
        found.clear()
        # These are the client's own errors, and final.
        assert "NOT_FOUND" in over_grpc("echo", "9")
        assert over_http("echo/versions/9").startswith("404 ")
        assert over_http("echo") == "200"
        assert over_grpc("echo") == "OK"
        until(lambda: (found.extend(log.take()), len(found) == 4)[1])
        assert not any(r.unloaded or r.failed for r in found)
