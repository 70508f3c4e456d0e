"""P99 of honest traffic beside a thousand slow connections, against the same traffic alone.

`.venv/bin/python tests/bench/slow_clients.py [--rounds 4] [--seconds 5] [--rate 200]`: rounds alone, with
slow headers and with slow bodies in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import aiohttp
import gateway_rig as rig
import numpy as np

from controlplane.domain.fleet import Route

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


@contextlib.asynccontextmanager
async def slow(port: int, opening: bytes, part: bytes) -> AsyncIterator[None]:
    """A thousand connections that send a part every second, opened again as they are closed."""

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

    tasks = [asyncio.create_task(one()) for _ in range(CONNECTIONS if opening else 0)]
    await asyncio.sleep(1)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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


async def measure(port: int, given: argparse.Namespace) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(given.rounds):
        for kind, (opening, part) in KINDS.items():
            async with slow(port, opening, part):
                found[kind].append(await p99_ms(port, given.rate, given.seconds))
    return found


def main() -> int:
    """0 where no P99 is more than doubled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=200.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        triton = stack.enter_context(rig.tritons(Path(folder), one={"echo": "echo"}))["one"]
        gateway, ports = stack.enter_context(rig.a_gateway(Path(folder)))
        gateway.commit({"echo": Route((triton.backend,))})
        found = asyncio.run(measure(ports.http, given))
    worst = 0.0
    for kind, p99s in found.items():
        ratio = statistics.median(a / b for a, b in zip(p99s, found["alone"], strict=True))
        worst = max(worst, ratio)
        print(f"{kind:<14}{statistics.median(p99s):>8.1f} ms P99{ratio:>8.2f}")
    print(f"highest ratio {worst:.2f}, aim {AIM}")
    return 0 if worst <= AIM else 1


if __name__ == "__main__":
    sys.exit(main())
