"""The gateway's price: through it against direct, in turn, with telemetry on.

Direct is the reference: a tritonserver on ports, where the gateway's is on sockets, the same perf_analyzer,
the same minute. On a host with other work, rates favour the gateway (more processes get more of the cores):
CPU times tell more there.
"""

import argparse
import asyncio
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gateway_rig as rig
import numpy as np
import psutil
import tritonclient.grpc as tg
import tritonclient.grpc.aio as tga
import tritonclient.http as th
from direct import get
from perf_client import closed_loop

from benchmarks.harness import Figures
from controlplane.domain.fleet import Route
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes
from controlplane.monitor.client import GatewayTelemetry

LARGE = 100 * 2**18


def drive(protocol: str, port: int, connections: int, window_ms: int) -> tuple[float, float]:
    """Requests a second and p50 in ms of a closed loop."""
    return closed_loop(protocol, f"{rig.HOST}:{port}", connections, window_ms, "--shape", "INPUT:16")


def against_direct(figures: Figures, ports: Any, triton: rig.Triton, rounds: int, window_ms: int) -> None:
    print(f"{'':<28}{'direct':>10}{'gateway':>10}{'ratio':>8}")
    for protocol, direct, gateway in (
        ("grpc", triton.grpc_port, ports.grpc),
        ("http", triton.http_port, ports.http),
    ):
        for connections in (1, 32):
            pairs = [
                (
                    drive(protocol, direct, connections, window_ms),
                    drive(protocol, gateway, connections, window_ms),
                )
                for _ in range(rounds)
            ]
            rates = [statistics.median(pair[i][0] for pair in pairs) for i in (0, 1)]
            ratio = statistics.median(through[0] / alone[0] for alone, through in pairs)
            p50s = [statistics.median(pair[i][1] for pair in pairs) for i in (0, 1)]
            name = f"{protocol}, {connections} connection{'s' if connections > 1 else ''}"
            print(f"{name + ', req/s':<28}{rates[0]:>10.0f}{rates[1]:>10.0f}{ratio:>8.2f}")
            print(
                f"{name + ', p50 ms':<28}{p50s[0]:>10.3f}{p50s[1]:>10.3f}"
                f"{p50s[1] / p50s[0]:>8.2f}   added {p50s[1] - p50s[0]:+.3f} ms"
            )
            if connections > 1:
                figures.add(f"{name}, throughput over a direct connection's", ratio, at_least=0.75)
            else:
                figures.add(f"{name}, added to the median", p50s[1] - p50s[0], "ms", at_most=0.3)


def after_redirect(figures: Figures, ports: Any, triton: rig.Triton, rounds: int, window_ms: int) -> None:
    """What a redirect leaves until HAProxy is started again: before 2.8.10 a connection for each request."""
    pairs = [
        (drive("grpc", triton.grpc_port, 32, window_ms), drive("grpc", ports.grpc, 32, window_ms))
        for _ in range(rounds)
    ]
    ratio = statistics.median(through[0] / alone[0] for alone, through in pairs)
    figures.add("grpc, 32 connections, after a redirect, throughput over a direct connection's", ratio)


def price(
    places: GatewayPaths, ports: Any, alone: rig.Triton, served: rig.Triton, how: tuple[int, int]
) -> None:
    """CPU time a request of everything that takes part, which a busy machine falsifies less than rates."""
    rounds, window_ms = how
    servers = [psutil.Process(triton.process.pid) for triton in (alone, served)]
    groups = {role: list(processes.find(places, role)) for role in processes.KEPT_UP}
    groups["tritonserver"] = [server.pid for server in servers]
    groups["model"] = [p.pid for server in servers for p in server.children(recursive=True)]

    def used() -> dict[str, float]:
        times = {name: [psutil.Process(pid).cpu_times() for pid in pids] for name, pids in groups.items()}
        spent = {name: sum(t.user + t.system for t in every) for name, every in times.items()}
        client = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {**spent, "client": client.ru_utime + client.ru_stime}

    def one(protocol: str, port: int) -> dict[str, float]:
        before, count = used(), inferences(alone, served)
        drive(protocol, port, 32, window_ms)
        time.sleep(0.1)  # the monitor gathers
        count = inferences(alone, served) - count
        after = used()
        return {name: 1e6 * (after[name] - before[name]) / count for name in after}

    for protocol, direct, gateway in (
        ("grpc", alone.grpc_port, ports.grpc),
        ("http", alone.http_port, ports.http),
    ):
        pairs = [(one(protocol, direct), one(protocol, gateway)) for _ in range(rounds)]
        ratio = statistics.median(sum(a.values()) / sum(b.values()) for a, b in pairs)
        costs = ", ".join(
            f"{name} {statistics.median(b[name] for _, b in pairs):.0f}" for name in pairs[0][1]
        )
        print(f"{protocol + ', CPU direct : gateway':<28}{ratio:>28.2f}   us a request: {costs}")


def inferences(*tritons: rig.Triton) -> int:
    """How many their models have answered."""
    pages = [get(triton.backend, "/v2/models/echo/stats") for triton in tritons]
    return sum(page["model_stats"][0]["inference_count"] for page in pages)


def memory(figures: Figures, places: GatewayPaths, ports: Any) -> None:
    values = np.zeros(LARGE, dtype=np.float32)

    def infer(module: Any, port: int, **how: Any) -> None:
        with module.InferenceServerClient(f"{rig.HOST}:{port}") as client:
            tensor = module.InferInput("INPUT", [LARGE], "FP32")
            tensor.set_data_from_numpy(values)
            assert client.infer("echo", [tensor], **how).as_numpy("OUTPUT").nbytes == values.nbytes

    def resident(role: str) -> float:
        return sum(psutil.Process(pid).memory_info().rss for pid in processes.find(places, role)) / 2**20

    before = {role: resident(role) for role in processes.KEPT_UP}
    for _ in range(2):
        infer(th, ports.http)
        infer(tg, ports.grpc)
        infer(tg, ports.grpc, compression_algorithm="gzip")
    time.sleep(2)
    for role, limit in ((processes.HAPROXY, 32), (processes.FACADE, 200), (processes.MONITOR, None)):
        print(f"{role + ', resident MB':<28}{before[role]:>10.1f}{resident(role):>10.1f}")
        figures.add(f"{role}, resident after tensors of 100 MB", resident(role), "MB", at_most=limit)


async def streams(figures: Figures, places: GatewayPaths, ports: Any, seconds: float) -> None:
    (pid,) = processes.find(places, processes.FACADE)
    facade = psutil.Process(pid)
    tensor = tga.InferInput("INPUT", [16], "FP32")
    tensor.set_data_from_numpy(np.zeros(16, dtype=np.float32))
    answered = 0

    async def one() -> None:
        nonlocal answered
        window = asyncio.Semaphore(16)
        until = time.monotonic() + seconds

        async def messages() -> Any:
            while time.monotonic() < until:
                await window.acquire()
                yield {"model_name": "echo", "inputs": [tensor]}

        async with tga.InferenceServerClient(f"{rig.HOST}:{ports.grpc}") as client:
            async for _, error in client.stream_infer(messages()):
                assert error is None, error
                answered += 1
                window.release()

    used = facade.cpu_times()
    started = time.monotonic()
    await asyncio.gather(*(one() for _ in range(4)))
    wall = time.monotonic() - started
    now = facade.cpu_times()
    busy = now.user + now.system - used.user - used.system
    print(
        f"{'facade, streamed messages':<28}{answered / wall:>10.0f}/s of wall time, {answered / busy:.0f}/s "
        f"of the facade's CPU time (it had {busy / wall:.0%} of a core)"
    )
    figures.add("messages a second of the facade's CPU time", answered / busy, "/s", at_least=2000)


def main() -> int:
    figures = Figures()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window-ms", type=int, default=700)
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with (
        tempfile.TemporaryDirectory() as here,
        rig.tritons(Path(here), alone={"echo": "echo"}) as on_ports,
        rig.tritons(
            Path(here), on_sockets=True, served={"echo": "echo"}, later={"echo": "echo"}
        ) as on_sockets,
        rig.a_gateway(Path(here)) as (gateway, ports),
    ):
        alone, served = on_ports["alone"], on_sockets["served"]
        gateway.commit({"echo": Route((served.backend,))})  # as an apply does
        places = GatewayPaths.of(Path(here) / "gateway")
        against_direct(figures, ports, alone, given.rounds, given.window_ms)
        telemetry = GatewayTelemetry(gateway.telemetry_socket)
        price(places, ports, alone, served, (given.rounds, given.window_ms))
        asyncio.run(streams(figures, places, ports, 4.0))
        memory(figures, places, ports)
        gateway.commit({"echo": Route((on_sockets["later"].backend,))})
        after_redirect(figures, ports, alone, given.rounds, given.window_ms)
        counts = telemetry.counts()
        figures.add(f"telemetry lost of {counts.received} lines", counts.lost, at_most=0)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
