"""Requests of a partition with several models wait at the gateway, in its order."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from background import until
from gateway_clients import floats, request_log, taken, tensor
from gateway_rig import HELD, HOST, Load, Ports, Triton, a_gateway, held, noted
from tritonclient.utils import InferenceServerException

from controlplane.domain.fleet import AccessConfig, Route
from controlplane.domain.serving import LONGEST_MS, Precedence
from controlplane.files.gateway.access import Client
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway.haproxy import HaproxyGateway
from controlplane.gateway.running import RuntimeSocket
from controlplane.gateway.security.registry import ClientRegistry
from controlplane.monitor.client import GatewayTelemetry

ORDER = {
    "echo": Precedence("P1", 0, 1, 1000, 1000),
    "slow": Precedence("P1", LONGEST_MS, 1, 1000, 1000),
}


@pytest.fixture(scope="module")
def late(home: Path, pair: dict[str, Triton]) -> Iterator[tuple[HaproxyGateway, Ports]]:
    with a_gateway(home, late_binding=True) as (gateway, ports):
        gateway.arrange(ORDER)
        gateway.commit({endpoint: Route((pair["one"].backend,)) for endpoint in ORDER})
        yield gateway, ports


def waiting(home: Path) -> int:
    """The requests in all gates."""
    sessions = RuntimeSocket(GatewayPaths.of(home / "gateway").runtime_socket).sessions(
        f"q_{i}" for i in range(4)
    )
    return sum(one.queued for (_, line), one in sessions.items() if line == "BACKEND")


def requests(ports: Ports, endpoint: str, count: int) -> tuple[Load, asyncio.Task[None]]:
    """Send so many at once, HTTP and gRPC in turn."""
    load = Load(ports, endpoint, HELD if endpoint == "slow" else 0.0)
    return load, asyncio.create_task(load.at_once(count))


async def queued(home: Path, count: int) -> None:
    await asyncio.to_thread(until, lambda: waiting(home) == count)


def test_a_short_request_passes_long_ones_that_wait(
    home: Path, late: tuple[HaproxyGateway, Ports], pair: dict[str, Triton]
) -> None:
    gateway, ports = late
    begun = noted(pair["one"].slow, "begun")

    async def run() -> tuple[Load, Load]:
        with held(pair["one"]):
            slow, long = requests(ports, "slow", 4)
            await queued(home, 3)
            echo, short = requests(ports, "echo", 4)
            await queued(home, 7)
            assert noted(pair["one"].slow, "begun") == begun + 1, "one request is in the server"
        await asyncio.gather(long, short)
        return slow, echo

    with request_log(gateway) as log:
        slow, echo = asyncio.run(run())
        ended = taken(log, 8)
    assert [o.error for o in (*slow.outcomes, *echo.outcomes)] == [None] * 8
    assert {o.kind for o in echo.outcomes} == {"http", "grpc"}
    in_order = sorted(ended, key=lambda record: record.ended_s)
    assert [r.endpoint for r in in_order] == ["slow", *4 * ["echo"], *3 * ["slow"]]
    assert {r.server for r in ended} == {pair["one"].backend.instance}


def test_what_a_client_leaves_behind_a_gate_is_told(
    late: tuple[HaproxyGateway, Ports], pair: dict[str, Triton]
) -> None:
    gateway, ports = late

    async def run() -> None:
        with held(pair["one"]):
            _, long = requests(ports, "slow", 1)
            await asyncio.to_thread(until, lambda: gateway.in_flight(pair["one"].backend).total == 1)
            long.cancel()
            await asyncio.to_thread(until, lambda: gateway.in_flight(pair["one"].backend).total == 0)

    with request_log(gateway) as log:
        asyncio.run(run())
        ended = taken(log, 1)
    assert (ended[0].endpoint, ended[0].abandoned, ended[0].held) == ("slow", True, True)


def test_requests_that_wait_go_where_their_endpoint_is_redirected_to(
    home: Path, late: tuple[HaproxyGateway, Ports], pair: dict[str, Triton]
) -> None:
    gateway, ports = late

    async def run() -> Load:
        with held(pair["one"]):
            _, long = requests(ports, "slow", 1)
            await asyncio.to_thread(until, lambda: gateway.in_flight(pair["one"].backend).total == 1)
            echo, short = requests(ports, "echo", 4)
            await queued(home, 4)
            routes = {endpoint: Route((pair["two"].backend,)) for endpoint in ORDER}
            await asyncio.to_thread(gateway.commit, routes)
        await asyncio.gather(long, short)
        return echo

    echo = asyncio.run(run())
    gateway.commit({endpoint: Route((pair["one"].backend,)) for endpoint in ORDER})
    assert {(o.server, o.error) for o in echo.outcomes} == {("two", None)}


def test_an_overloaded_partition_refuses_what_is_beyond_the_plan(
    home: Path, late: tuple[HaproxyGateway, Ports], pair: dict[str, Triton]
) -> None:
    """`slow` is above its planned rate and refused at once; `echo` is within its own and waits."""
    gateway, ports = late
    telemetry = GatewayTelemetry(gateway.telemetry_socket)
    gateway.arrange(
        {
            "echo": Precedence("P1", 0, 1, 1, 1000),
            "slow": Precedence("P1", 0, 1, 1, 0),
        }
    )

    async def run() -> Load:
        with held(pair["one"]):
            _, long = requests(ports, "slow", 1)
            await asyncio.to_thread(until, lambda: gateway.in_flight(pair["one"].backend).total == 1)
            echo, short = requests(ports, "echo", 2)
            await queued(home, 2)
            await asyncio.to_thread(refused, ports)
        await asyncio.gather(long, short)
        return echo

    echo = asyncio.run(run())
    gateway.arrange(ORDER)
    assert [o.error for o in echo.outcomes] == [None, None]
    until(lambda: "slow" in telemetry.windows(60.0))
    assert telemetry.windows(60.0)["slow"].errors == 0, "a refusal is no failure of the fleet"


def test_a_client_that_got_much_lately_lets_another_pass_and_another_is_not_refused_for_it(
    tmp_path: Path, pair: dict[str, Triton]
) -> None:
    most = Precedence("P1", 0, 1, 1000, 1000, served_ms=1000, deficit_ms=10_000)
    with a_gateway(tmp_path, late_binding=True, protection=AccessConfig(tokens=True)) as (gateway, ports):
        registry = ClientRegistry(tmp_path / "gateway")
        tokens = {name: registry.create(Client(name, ("*",))) or "" for name in ("greedy", "other")}
        gateway.arrange({"echo": most, "slow": most})
        gateway.commit({endpoint: Route((pair["one"].backend,)) for endpoint in ORDER})

        async def run() -> list[Load]:
            before = Load(ports, "echo", token=tokens["greedy"])
            await before.at_once(8)
            with held(pair["one"]):
                slow = Load(ports, "slow", HELD, token=tokens["other"])
                long = asyncio.create_task(slow.at_once(1))
                await asyncio.to_thread(until, lambda: gateway.in_flight(pair["one"].backend).total == 1)
                loads = [Load(ports, "echo", token=tokens[name]) for name in ("greedy", "other")]
                short = []
                for number, load in enumerate(loads, start=1):
                    short.append(asyncio.create_task(load.at_once(2)))
                    await queued(tmp_path, 2 * number)
                # What is beyond the promise is refused from now on; this client got less than half of it.
                strict = replace(most, overloaded_at=3, promised=4)
                await asyncio.to_thread(gateway.arrange, {"echo": strict, "slow": strict})
                last = [Load(ports, "echo", token=tokens[name]) for name in ("greedy", "other")]
                await last[0].at_once(1)
                short.append(asyncio.create_task(last[1].at_once(1)))
                await queued(tmp_path, 5)
            await asyncio.gather(long, *short)
            return [before, slow, *loads, *last]

        with request_log(gateway) as log:
            *served, refused_one, spared = asyncio.run(run())
            ended = taken(log, 14)
    assert [o.error for load in (*served, spared) for o in load.outcomes] == [None] * 14
    assert "above its planned rate" in (refused_one.outcomes[0].error or "")
    in_order = [
        r.client for r in sorted(ended, key=lambda r: r.ended_s) if r.endpoint == "echo" and not r.refused
    ]
    assert in_order[8:10] == ["other", "other"]


def refused(ports: Ports) -> None:
    """Call `slow` over both protocols."""
    above = "above its planned rate"
    for module, port, words in (
        (over_grpc, ports.grpc, f"RESOURCE_EXHAUSTED.*{above}"),
        (over_http, ports.http, above),
    ):
        with (
            module.InferenceServerClient(f"{HOST}:{port}") as client,
            pytest.raises(InferenceServerException, match=words),
        ):
            client.infer("slow", tensor(module, floats(0, 0, 0, 0)))
