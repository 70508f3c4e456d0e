from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
import urllib.request
from pathlib import Path

import gateway_rig as rig
import numpy as np
import pytest
import tritonclient.grpc as tg
from prometheus_client.parser import text_string_to_metric_families

from controlplane.domain.fleet import Backend, Route
from controlplane.gateway import processes
from controlplane.gateway.haproxy import HaproxyGateway, Ports
from controlplane.gateway.places import Places
from controlplane.monitor.request_log import RequestLog
from controlplane.monitor.telemetry import GatewayTelemetry

pytestmark = pytest.mark.e2e

AT_THE_KILL = 20
"""Lines that a monitor may have read and not yet handed on: what came within the 50 ms that it gathers."""

Running = tuple[HaproxyGateway, Ports]
Pair = dict[str, rig.Triton]


def test_every_request_is_seen_with_its_server_and_its_time(fresh: Running, pair: Pair) -> None:
    made, ports = fresh
    made.commit({"slow": Route((pair["one"].backend,))})
    telemetry = GatewayTelemetry(made.telemetry_socket)
    load = rig.Load(ports, "slow", seconds_of_work=0.02)
    answered = 0

    async def run() -> None:
        nonlocal answered
        stop = asyncio.Event()
        tasks = [asyncio.create_task(load.unary(20, stop))]
        tasks.append(asyncio.create_task(load.stream(0.1, stop, 1)))
        await asyncio.sleep(1.0)
        await asyncio.to_thread(made.commit, {"slow": Route((pair["two"].backend,))})
        await asyncio.sleep(1.0)
        stop.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert load.failed() == []
    rig.until(lambda: telemetry.windows(60)["slow"].requests >= len(load.outcomes))
    window = telemetry.windows(60)["slow"]
    assert (window.requests, window.errors) == (len(load.outcomes), 0)
    assert telemetry.counts().lost == 0
    seen = statistics.median(1000 * (o.ended - o.started) for o in load.outcomes)
    assert window.p50_ms is not None
    assert 20 <= window.p50_ms <= seen + 1
    by_server = {server: w.requests for (_, server), w in telemetry.servers(60).items()}
    assert by_server == {
        name: sum(outcome.server == name for outcome in load.outcomes) for name in ("one", "two")
    }
    # The second under way is not told yet.
    rig.until(lambda: sum(s.requests for s in telemetry.seconds(60)) >= len(load.outcomes))
    seconds = telemetry.seconds(60)
    assert sum(second.requests for second in seconds) == len(load.outcomes)
    assert all(second.p99_ms is not None and second.bytes_out > 0 for second in seconds)


def test_a_monitor_that_is_killed_misses_nothing(fresh: Running, pair: Pair, tmp_path: Path) -> None:
    made, ports = fresh
    made.commit({"echo": Route((pair["one"].backend,))})
    places = Places.of(tmp_path / "gateway")
    load = rig.Load(ports)
    log = RequestLog(made.telemetry_socket)
    heard = 0

    def hears() -> bool:
        nonlocal heard
        heard += len(log.take())
        return log.heard_since_s < time.monotonic() - 0.01

    rig.until(hears)

    async def run() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(load.unary(100, stop))
        await asyncio.sleep(0.3)
        (monitor,) = processes.find(places, processes.MONITOR)
        os.kill(monitor, signal.SIGKILL)
        await asyncio.to_thread(rig.until, lambda: not hears())
        await asyncio.to_thread(rig.until, hears)
        await asyncio.sleep(0.3)
        stop.set()
        await task

    asyncio.run(run())
    assert load.failed() == []
    rig.until(lambda: hears() and heard >= len(load.outcomes) - AT_THE_KILL)
    log.close()
    assert GatewayTelemetry(made.telemetry_socket).counts().lost == 0


def test_refusals_and_dead_servers_are_told_apart(fresh: Running, pair: Pair) -> None:
    made, ports = fresh
    made.commit({"echo": Route((pair["one"].backend,)), "gone": Route((Backend("gone", rig.HOST, 1, 1),))})
    telemetry = GatewayTelemetry(made.telemetry_socket)
    wrong = tg.InferInput("INPUT", [1], "INT32")
    wrong.set_data_from_numpy(np.ones(1, dtype=np.int32))
    with tg.InferenceServerClient(f"{rig.HOST}:{ports.grpc}") as client:
        for endpoint in ("echo", "gone", "gone"):
            with pytest.raises(Exception, match=r"data-type|no server|lost"):
                client.infer(endpoint, [wrong])
        client.get_model_metadata("echo")
    rig.until(lambda: "echo" in telemetry.windows(60))
    assert telemetry.windows(60)["echo"].errors == 0
    assert telemetry.windows(60)["echo"].requests == 1
    rig.until(lambda: "gone" in telemetry.windows(60) and telemetry.windows(60)["gone"].errors == 2)


def test_what_a_server_held_when_it_died_is_counted_though_haproxy_logs_nothing(
    fresh: Running, pair: Pair, tmp_path: Path
) -> None:
    made, ports = fresh
    telemetry = GatewayTelemetry(made.telemetry_socket)
    with rig.tritons(tmp_path, doomed={"echo": "echo"}) as running:
        doomed = running["doomed"]
        made.commit({"echo": Route((doomed.backend,), pair["two"].backend)})
        load = rig.Load(ports)

        async def run() -> None:
            # HAProxy keeps the connection that these make. On a new one it would send again what is lost.
            await load.at_once(4)
            # Calls that it has not read: its end resets their connection.
            os.kill(doomed.process.pid, signal.SIGSTOP)
            task = asyncio.create_task(load.at_once(20))
            await asyncio.to_thread(
                rig.until, lambda: made.in_flight(doomed.backend) + len(load.outcomes) == 24
            )
            await asyncio.to_thread(doomed.kill)
            await task

        rig.until(lambda: telemetry.counts().unlogged is not None)
        asyncio.run(run())
    assert load.failed() != []
    rig.until(lambda: telemetry.windows(60)["echo"].requests == len(load.outcomes))
    assert telemetry.windows(60)["echo"].errors == len(load.failed())
    told = telemetry.counts()
    assert told.lost == 0
    assert told.unlogged, "nothing was lost without a line: this tested nothing"


def test_one_page_of_metrics_for_the_fleet(fresh: Running, pair: Pair) -> None:
    made, ports = fresh
    one = pair["one"]
    named = Backend("fleet.W1-1.active.abc", rig.HOST, one.http_port, one.grpc_port, one.metrics_port)
    made.commit({"echo": Route((named,))})
    load = rig.Load(ports)
    load.for_a_while(100, 0.3)
    telemetry = GatewayTelemetry(made.telemetry_socket)
    rig.until(lambda: sum(w.requests for w in telemetry.windows(60).values()) == len(load.outcomes))
    with urllib.request.urlopen(f"http://{rig.HOST}:{ports.metrics}/metrics", timeout=10) as page:
        families = {f.name: f.samples for f in text_string_to_metric_families(page.read().decode())}
    ours = families["trisect_requests"]
    assert sum(s.value for s in ours) == len(load.outcomes)
    assert {(s.labels["partition"], s.labels["role"]) for s in ours} == {("W1-1", "active")}
    assert {s.labels["protocol"] for s in ours} == {"http", "grpc"}
    proxies = families["haproxy_sessions"]
    assert {s.labels["endpoint"] for s in proxies if s.labels["proxy"] == "g_0"} == {"echo"}
    counted = [s for s in families["nv_inference_request_success"] if s.labels["model"] == "echo"]
    assert [(s.labels["partition"], s.labels["role"]) for s in counted] == [("W1-1", "active")]
    assert counted[0].value >= len(load.outcomes)
    assert families["trisect_telemetry_lines_lost"][0].value == 0
