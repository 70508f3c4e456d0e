"""Other batches on a server that serves: how soon they hold, what they cost, and that no request fails.

`.venv/bin/python -m benchmarks.serving.live_batch [--changes 100] [--onnx | --cut]`. A model that takes
10 ms and 1 ms for each inference, or with `--onnx` a convolutional network in a Python stub, serves clients
that keep its queue full, over HTTP and gRPC, with 1 and 4 inferences in a request, while its limit changes up
and down at random. It writes down each batch. Printed are the time from a
change to the first batch of the new size, beyond the batches that were formed before; the largest batch of
Triton's own statistics over the limit once those have ended; failures; and the throughput with the library
over that without, at the largest limit, in pairs.

With `--cut` a server without a shadow loses a part of its quota and is overloaded, once in a fleet whose
batches change and once in one whose batches are fixed. Printed are the late requests of both.
"""

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from background import Clients
from bare_triton import BareTriton, bare_triton
from lone_server import LEARNED, PERCENT, document, load, lone_server
from model_files import write

from benchmarks.harness import Figures
from benchmarks.support.slower_model import late
from controlplane.domain.fleet import BATCH_LIBRARY, LIVE_BATCHES
from launchers.triton import batches
from launchers.triton.batches import BatchFiles, environment

LARGEST, CLIENTS, WINDOW_S = 16, 40, 0.3
FORMED_BEFORE = 3
"""Batches that may have been formed before a change: one that executes, and two that wait."""
PAIRS, PAIR_S = 5, 3.0
CUT_PERCENT, SLO_MS = 20.0, 500.0
CUT_S, SETTLED_S = 40.0, 20.0
"""Seconds from the cut that are looked at, and after which a larger batch has worked off what waited."""
KINDS = {"HTTP": triton_http, "gRPC": triton_grpc}
MODEL = """
import time

import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        self.log = open("{log}", "a", buffering=1)

    def execute(self, requests):
        tensors = [pb.get_input_tensor_by_name(r, "X").as_numpy() for r in requests]
        size = sum(len(t) for t in tensors)
        print(time.monotonic(), size, file=self.log)
        time.sleep(0.010 + 0.001 * size)
        return [pb.InferenceResponse([pb.Tensor("Y", t)]) for t in tensors]
"""
SAMPLES = Path(__file__).parents[2] / "model_repository"
LOGGED = """

import time


class TritonPythonModel(TritonPythonModel):
    def initialize(self, args):
        super().initialize(args)
        self.log = open("{log}", "a", buffering=1)

    def execute(self, requests):
        sizes = [pb_utils.get_input_tensor_by_name(r, "INPUT").shape()[0] for r in requests]
        print(time.monotonic(), sum(sizes), file=self.log)
        return super().execute(requests)
"""
CONFIG = f"""
backend: "python"
max_batch_size: 32
input {{ name: "%s" data_type: TYPE_FP32 dims: %s }}
output {{ name: "%s" data_type: TYPE_FP32 dims: %s }}
instance_group {{ count: 1 kind: KIND_CPU }}
dynamic_batching {{ preferred_batch_size: [ {LARGEST} ] }}
"""


@dataclass(frozen=True)
class Model:
    """A model that writes down each batch; `weights` lie beside its source."""

    tensors: tuple[str, str]
    dims: tuple[list[int], list[int]]
    source: str
    weights: Path | None = None

    def write(self, repository: Path, log: Path) -> None:
        (x, y), (x_dims, y_dims) = self.tensors, self.dims
        config = CONFIG % (x, x_dims, y, y_dims)
        folder = write(repository, "m", self.source.replace("{log}", str(log)), config)
        if self.weights is not None:
            (folder / "1" / self.weights.name).symlink_to(self.weights)


def model_of(*, onnx: bool) -> Model:
    if not onnx:
        return Model(("X", "Y"), ([1], [1]), MODEL)
    source = (SAMPLES / "onnx_model.py").read_text() + LOGGED
    weights = SAMPLES / "alexnet_tiny" / "1" / "model.onnx"
    return Model(("INPUT", "OUTPUT"), ([3, 64, 64], [100]), source, weights)


@contextmanager
def served(folder: Path, model: Model, *, live: bool) -> Iterator[tuple[BareTriton, BatchFiles]]:
    """The model on a Triton of its own, with the library where it is `live`."""
    model.write(folder / "models", folder / "batches.log")
    files = BatchFiles(folder / "files")
    if live:
        library = batches.library()
        assert library is not None, "make setup builds it"
        (folder / "models" / "m" / BATCH_LIBRARY).symlink_to(library)
        planned = (("m", LARGEST),)
        files.make(planned, shared=False)
        os.environ |= environment(planned, files)
    with bare_triton(folder / "models", folder / "log") as running:
        assert not live or files.unanswered() == ()
        yield running, files


class Load(Clients):
    """Clients that send one request after another."""

    def __init__(self, running: BareTriton, model: Model, protocol: str, client_batch: int) -> None:
        super().__init__(CLIENTS)
        self._running, self._protocol = running, protocol
        self._name, self._shape = model.tensors[0], [client_batch, *model.dims[0]]

    def call(self, number: int) -> Callable[[], object]:
        module: Any = KINDS[self._protocol]
        address = self._running.http if self._protocol == "HTTP" else self._running.grpc
        client, x = module.InferenceServerClient(address), module.InferInput(self._name, self._shape, "FP32")
        x.set_data_from_numpy(np.zeros(self._shape, dtype=np.float32))
        return lambda: client.infer("m", [x])


def counts(running: BareTriton) -> Counter[int]:
    with urllib.request.urlopen(f"http://{running.http}/v2/models/m/stats", timeout=10) as answer:
        (stats,) = json.load(answer)["model_stats"]
    return Counter({one["batch_size"]: one["compute_infer"]["count"] for one in stats.get("batch_stats", ())})


def written(folder: Path) -> list[tuple[float, int]]:
    lines = (folder / "batches.log").read_text().splitlines()
    return [(float(at), int(size)) for at, size in map(str.split, lines)]


def changes(
    folder: Path, model: Model, protocol: str, client_batch: int, count: int
) -> tuple[list[float], int, int]:
    """The delays of `count` changes in ms, the largest excess of a batch over its limit, and the failures."""
    dice, delays, excess = random.Random(count), [], 0
    with (
        served(folder, model, live=True) as (running, files),
        Load(running, model, protocol, client_batch) as clients,
    ):
        time.sleep(1.0)
        for _ in range(count):
            limit = dice.choice([n for n in range(client_batch, LARGEST + 1) if n % client_batch == 0])
            changed_s = time.monotonic()
            files.set((("m", limit),))
            formed = counts(running).total() + FORMED_BEFORE
            while counts(running).total() <= formed:
                time.sleep(0.02)
            time.sleep(WINDOW_S)
            settled = counts(running)
            time.sleep(WINDOW_S)
            grown = counts(running) - settled
            excess = max(excess, *(size - limit for size in grown)) if grown else excess
            later = [(at, size) for at, size in written(folder) if at > changed_s]
            first = next((i for i, (_, size) in enumerate(later) if size == limit), len(later) - 1)
            usual = later[min(FORMED_BEFORE, first, len(later) - 1)][0]
            delays.append(1000.0 * (later[first][0] - usual))
        return delays, excess, len(clients.failed)


def throughput(folder: Path, model: Model) -> list[float]:
    """Throughput with the library over that without, of each pair."""
    with ExitStack() as stack:
        both = [
            stack.enter_context(served(folder / str(live), model, live=live))[0] for live in (True, False)
        ]
        ratios = []
        for i in range(PAIRS):
            rates = {}
            for running in both if i % 2 else both[::-1]:
                with Load(running, model, "gRPC", 1) as clients:
                    time.sleep(PAIR_S)
                    rates[running] = clients.done
            ratios.append(rates[both[0]] / rates[both[1]])
        return ratios


@dataclass(frozen=True)
class Cut:
    """What a cut quota did: seconds to the first change of the batch, and the parts that were late, in %.

    `settled` is of the requests that came SETTLED_S or more after the cut.
    """

    changed_s: float
    late: float
    settled: float
    failed: int
    started: int


def cut(folder: Path, *, live: bool) -> Cut:
    """Cut the quota of a lone server, whose batch may change where it is `live`."""
    with lone_server(folder) as fleet:
        if not live:
            fleet.environment[LIVE_BATCHES] = "off"
        fleet.apply(document(SLO_MS))
        before = {server.id for server in fleet.launched()}
        with load(fleet) as clients:
            clients.await_answers(LEARNED)
            cut_s = time.time()
            fleet.cut_quota(PERCENT, CUT_PERCENT)
            time.sleep(CUT_S)
        changed_s = min((event.at_s for event in fleet.events("batch", cut_s)), default=math.inf) - cut_s
        parts = []
        for since_s in (cut_s, cut_s + SETTLED_S):
            requests = clients.between(since_s, cut_s + CUT_S)
            parts.append(100.0 * late(requests, SLO_MS) / len(requests))
        started = len({server.id for server in fleet.launched()} - before)
        return Cut(changed_s, parts[0], parts[1], len(clients.failed()), started)


def cut_figures() -> Figures:
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder:
        fixed, live = (cut(Path(folder, str(live)), live=live) for live in (False, True))
    figures.add("the batch changed after", live.changed_s, "s", at_most=10)
    figures.add("late with fixed batches: the cut breaks the SLO", fixed.late, "%", at_least=20)
    figures.add("late with a batch that changes", live.late, "%", at_most=fixed.late / 2)
    figures.add(f"the same from {SETTLED_S:g} s after the cut on, fixed", fixed.settled, "%")
    figures.add("changed", live.settled, "%", at_most=1)
    figures.add("failed requests", live.failed, at_most=0)
    figures.add("servers started", live.started, at_most=0)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=100, help="in all, of the four kinds of clients")
    parser.add_argument("--onnx", action="store_true", help="a network in a Python stub")
    parser.add_argument("--cut", action="store_true", help="a server that loses a part of its quota")
    given = parser.parse_args()
    if given.cut:
        return cut_figures().end()
    model = model_of(onnx=given.onnx)
    figures, failed = Figures(), 0
    delays: list[float] = []
    excesses: list[int] = []
    for protocol in KINDS:
        for client_batch in (1, 4):
            with tempfile.TemporaryDirectory() as folder:
                ms, excess, lost = changes(Path(folder), model, protocol, client_batch, given.changes // 4)
            print(
                f"{protocol}, {client_batch} in a request: median {statistics.median(ms):.1f} ms", flush=True
            )
            delays, failed = [*delays, *ms], failed + lost
            excesses.append(excess)
    with tempfile.TemporaryDirectory() as folder:
        ratios = throughput(Path(folder), model)
    figures.add(
        "a change holds, after the batches under way, median", statistics.median(delays), "ms", at_most=50
    )
    figures.add("the same, 95 % of changes", float(np.quantile(delays, 0.95)), "ms", at_most=50)
    figures.add("largest batch above its limit", max(excesses), "inferences", at_most=0)
    figures.add("failed requests", failed, at_most=0)
    figures.add("throughput with the library over without", statistics.median(ratios), at_least=0.98)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
