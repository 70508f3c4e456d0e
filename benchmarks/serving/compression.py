"""P99 of clients that accept or send compressed data, beside the same clients that do not.

`python -m benchmarks.serving.compression [--percent 50] [--rounds 5] [--requests 200]`: one Triton on a
share of a core answers with 520 kB. Requests of both kinds alternate on one client, so that the host's other
work meets both. A quarter as many sent straight to the Triton are the reference.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import gateway_rig as rig
import numpy as np
import requests
import tritonclient.grpc as tg
import tritonclient.http as th
import tritonclient.http.aio as tha

from benchmarks.harness import Figures
from controlplane.domain.fleet import Route
from launchers.cpu_quota import CHAIN, Group, first_that_holds
from launchers.cpu_quota.mechanism import Weight
from launchers.triton.labels import digest

BODY = json.dumps(
    {
        "inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1], "data": [1]}],
        "parameters": {"binary_data_output": True},
    }
).encode()
PATH = "/v2/models/wide/infer"
ANSWER_BYTES = 4 * 130_000
Send = Callable[[bool], object]
"""One request; True where it accepts or sends compressed data."""


@contextlib.contextmanager
def with_aiohttp(http: str, _: str) -> Iterator[Send]:
    async def make() -> aiohttp.ClientSession:
        return aiohttp.ClientSession()

    async def send(compressed: bool) -> None:
        skipped = () if compressed else ("Accept-Encoding",)
        async with session.post(f"http://{http}{PATH}", data=BODY, skip_auto_headers=skipped) as answer:
            assert len(await answer.read()) > ANSWER_BYTES

    with asyncio.Runner() as runner:
        session = runner.run(make())
        yield lambda compressed: runner.run(send(compressed))
        runner.run(session.close())


@contextlib.contextmanager
def with_requests(http: str, _: str) -> Iterator[Send]:
    def send(compressed: bool) -> None:
        # None takes the session's own header away.
        headers: dict[str, Any] = {} if compressed else {"Accept-Encoding": None}
        answer = session.post(f"http://{http}{PATH}", BODY, headers=headers, timeout=60)
        assert len(answer.content) > ANSWER_BYTES

    with requests.Session() as session:
        yield send


@contextlib.contextmanager
def with_http(http: str, _: str) -> Iterator[Send]:
    with th.InferenceServerClient(http) as client:
        yield lambda compressed: _checked(
            client.infer("wide", _inputs(th), response_compression_algorithm="gzip" if compressed else None)
        )


@contextlib.contextmanager
def with_http_aio(http: str, _: str) -> Iterator[Send]:
    async def make() -> Any:
        return tha.InferenceServerClient(http)

    async def send(compressed: bool) -> None:
        headers = None if compressed else {"Accept-Encoding": "identity"}
        _checked(await client.infer("wide", _inputs(tha), headers=headers))

    with asyncio.Runner() as runner:
        client = runner.run(make())
        yield lambda compressed: runner.run(send(compressed))
        runner.run(client.close())


@contextlib.contextmanager
def with_grpc(_: str, grpc: str) -> Iterator[Send]:
    with tg.InferenceServerClient(grpc) as client:
        yield lambda compressed: _checked(
            client.infer("wide", _inputs(tg), compression_algorithm="gzip" if compressed else None)
        )


MOST_HTTP, MOST_GRPC = 1.3, 2.0
"""A compressed gRPC call goes through the facade, in Python."""
GRPC = "tritonclient.grpc"
CLIENTS = {
    "aiohttp": with_aiohttp,
    "requests": with_requests,
    "tritonclient.http": with_http,
    "tritonclient.http.aio": with_http_aio,
    GRPC: with_grpc,
}


def _inputs(module: Any) -> list[Any]:
    # gRPC leaves a message uncompressed that would not become smaller.
    tensor = module.InferInput("INPUT", [1000], "FP32")
    tensor.set_data_from_numpy(np.ones(1000, dtype=np.float32))
    return [tensor]


def _checked(result: Any) -> None:
    assert result.as_numpy("OUTPUT").nbytes == ANSWER_BYTES


def p99s(send: Send, count: int) -> tuple[float, float]:
    """Milliseconds of the requests without and with compression."""
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * count):
        # Now one is first, now the other.
        compressed = number % 4 in (1, 2)
        started = time.perf_counter()
        send(compressed)
        times[compressed].append(1000 * (time.perf_counter() - started))
    without, with_ = (float(np.percentile(times[kind], 99)) for kind in (False, True))
    return without, with_


def compare(figures: Figures, targets: dict[str, tuple[str, str, int]], rounds: int) -> None:
    print(f"{'P99 in ms':<34}{'without':>9}{'with':>9}{'ratio':>8}   ratio of each round")
    for place, (http, grpc, count) in targets.items():
        for name, client in CLIENTS.items():
            with client(http, grpc) as send:
                p99s(send, 5)
                pairs = [p99s(send, count) for _ in range(rounds)]
            ratios = [with_ / without for without, with_ in pairs]
            without, with_ = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
            print(
                f"{place + ', ' + name:<34}{without:>9.1f}{with_:>9.1f}{statistics.median(ratios):>8.2f}   "
                + " ".join(f"{ratio:.2f}" for ratio in sorted(ratios)),
                flush=True,
            )
            if place == "gateway":
                most = MOST_GRPC if name == GRPC else MOST_HTTP
                figures.add(f"{name}, P99 with over without", statistics.median(ratios), at_most=most)


def main() -> int:
    figures = Figures()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--percent", type=float, default=50.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200)
    given = parser.parse_args()
    mechanism = first_that_holds(CHAIN)
    if mechanism is None:
        raise SystemExit("no quota works here: ctl doctor says why")
    group = Group("bench", "one", digest(f"compression-{os.getpid()}"))
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; the server has {given.percent:g} % of "
        f"a core ({mechanism.name}); {given.rounds} rounds of {given.requests} requests of each kind"
    )
    try:
        with tempfile.TemporaryDirectory() as name:
            here = Path(name)
            prefix = tuple(mechanism.enter(group, given.percent))
            mechanism.weigh(group, Weight.FULL)
            with (
                rig.tritons(here, prefix=prefix, one={"wide": "wide"}) as running,
                rig.a_gateway(here) as (gateway, ports),
            ):
                triton = running["one"]
                gateway.commit({"wide": Route((triton.backend,))})
                compare(
                    figures,
                    {
                        "direct": (
                            f"{rig.HOST}:{triton.http_port}",
                            f"{rig.HOST}:{triton.grpc_port}",
                            max(1, given.requests // 4),
                        ),
                        "gateway": (f"{rig.HOST}:{ports.http}", f"{rig.HOST}:{ports.grpc}", given.requests),
                    },
                    given.rounds,
                )
    finally:
        mechanism.leave(group)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
