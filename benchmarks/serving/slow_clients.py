"""P99 of honest traffic beside a thousand slow connections, against the same traffic alone.

`python -m benchmarks.serving.slow_clients [--rounds 4] [--seconds 5] [--rate 200]`: rounds alone, with
slow headers and with slow bodies in turn.

A real attacker has processors of its own. Here it is a process that the kernel runs only while nothing else
wants the core (SCHED_IDLE), and its processor time is in the table. What it costs the gateway counts in full.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import gateway_rig as rig
import numpy as np
import psutil

from benchmarks.harness import Figures
from controlplane.domain.fleet import Route
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes

AIM = 2.0
CONNECTIONS = 1000
PATH = "/v2/models/echo/infer"
BODY = b'{"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1], "data": [5]}]}'
OPENING = f"POST {PATH} HTTP/1.1\r\nHost: x\r\n".encode()
KINDS = {
    "alone": (b"", b""),
    "slow headers": (OPENING, b"X-a: b\r\n"),
    "slow bodies": (OPENING + b"Content-Length: 100000\r\n\r\n", b"x"),
}


async def attack(port: int, opening: bytes, part: bytes) -> None:
    """Hold a thousand connections that send a part every second, opened again as they are closed."""

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(rig.HOST, port)
                try:
                    writer.write(opening)
                    while not reader.at_eof():
                        await asyncio.sleep(1)
                        writer.write(part)
                        await writer.drain()
                finally:
                    writer.close()

    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))


Round = tuple[float, float, float]
"""P99, and the shares of a core that the attacker and HAProxy take."""


@contextlib.contextmanager
def attacked(port: int, kind: str) -> Iterator[Callable[[], float]]:
    """An attack from another process; gives a function for its processor seconds so far."""
    if kind == "alone":
        yield lambda: 0.0
        return
    command = [sys.executable, "-m", "benchmarks.serving.slow_clients", "--attack", str(port), kind]
    with subprocess.Popen(command) as attacker:
        try:
            os.sched_setscheduler(attacker.pid, os.SCHED_IDLE, os.sched_param(0))
            process = psutil.Process(attacker.pid)
            while len(process.net_connections()) < CONNECTIONS // 2:
                time.sleep(0.1)
            yield lambda: sum(process.cpu_times()[:2])
        finally:
            attacker.kill()


async def p99_ms(port: int, rate_rps: float, seconds: float) -> float:
    """Of Poisson arrivals, all of which must be answered."""
    chance = np.random.default_rng(1)
    latencies: list[float] = []

    async def one(session: aiohttp.ClientSession) -> None:
        started = time.monotonic()
        async with session.post(f"http://{rig.HOST}:{port}{PATH}", data=BODY) as answer:
            await answer.read()
            assert answer.status == 200
        latencies.append((time.monotonic() - started) * 1e3)

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        due = time.monotonic()
        until = due + seconds
        while due < until:
            due += chance.exponential(1 / rate_rps)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(one(session))
    return float(np.quantile(latencies, 0.99))


def measure(port: int, haproxy: int, given: argparse.Namespace) -> dict[str, list[Round]]:
    """Measure each kind in turn."""
    found: dict[str, list[Round]] = {kind: [] for kind in KINDS}
    gateway = psutil.Process(haproxy)
    for _ in range(given.rounds):
        for kind in KINDS:
            with attacked(port, kind) as used_s:
                before, started = np.array((used_s(), sum(gateway.cpu_times()[:2]))), time.monotonic()
                p99 = asyncio.run(p99_ms(port, given.rate, given.seconds))
                used = np.array((used_s(), sum(gateway.cpu_times()[:2]))) - before
                attacker, own = used / (time.monotonic() - started)
                found[kind].append((p99, attacker, own))
    return found


def main() -> int:
    """0 where no P99 is more than doubled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--attack", nargs=2, metavar=("PORT", "KIND"), help="attack only, until killed")
    given = parser.parse_args()
    if given.attack:
        asyncio.run(attack(int(given.attack[0]), *KINDS[given.attack[1]]))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        triton = stack.enter_context(rig.tritons(Path(folder), one={"echo": "echo"}))["one"]
        gateway, ports = stack.enter_context(rig.a_gateway(Path(folder)))
        gateway.commit({"echo": Route((triton.backend,))})
        haproxy = rig.only(GatewayPaths.of(Path(folder) / "gateway"), processes.HAPROXY)
        found = measure(ports.http, haproxy, given)
    figures = Figures()
    for kind, rounds in found.items():
        ratio = statistics.median(a[0] / b[0] for a, b in zip(rounds, found["alone"], strict=True))
        p99, attacker, used = (statistics.median(one[i] for one in rounds) for i in range(3))
        figures.add(f"{kind}: P99", p99, "ms")
        if kind != "alone":
            figures.add(f"{kind}: over the P99 alone", ratio, at_most=AIM)
        figures.add(f"{kind}: attacker", attacker, "of a core")
        figures.add(f"{kind}: HAProxy", used, "of a core")
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
