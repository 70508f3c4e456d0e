"""What a second endpoint of a model costs: the model by its own name against an alias of it, in turn.

Reference: the same tritonserver, the same model, the same minute. The model returns its input (of an image a
piece) and waits at most, so nothing but Triton and its Python backend is measured. On a host with other work
the CPU times tell more than the clock's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from bare_triton import BareTriton, bare_triton
from tritonclient.grpc import service_pb2

from benchmarks.harness import Figures
from controlplane.domain.plan import Partition, Placement, ServedModel
from controlplane.files.rendered import write_tree
from controlplane.profiler.load import ClosedLoop
from controlplane.render.repository import render_partition

CONFIG = """
backend: "python"
max_batch_size: 16
input [ { name: "X", data_type: TYPE_FP32, dims: [ -1 ] } ]
output [ { name: "Y", data_type: TYPE_FP32, dims: [ -1 ] } ]
"""
MODEL = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(r, "X").as_numpy() for r in requests]
        if tensors[0].shape[1] == 17:
            time.sleep(0.01)
        kept = [x[:, :16] if x.shape[1] == 3 * 224 * 224 else x for x in tensors]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]) for y in kept]
"""
ENDPOINTS = ("model", "twin")
MOST_RATIO = 1.5
"""For a model that does next to nothing: the alias's step is 50 to 80 us of a processor."""
SIZES = {
    "64 B": 16,
    "64 B, 10 ms a batch": 17,
    "600 kB in, 64 B out": 3 * 224 * 224,
    "600 kB in and out": 3 * 224 * 224 + 1,
}


class Seen(NamedTuple):
    """One run: latencies (ms), answers a second, CPU time a request (us) of Triton and its model process."""

    latency_ms: np.ndarray
    rate_rps: float
    triton_us: float


def drive(
    triton: BareTriton, process: psutil.Process, endpoint: str, floats: int, loops: int, n: int
) -> Seen:
    request = service_pb2.ModelInferRequest(model_name=endpoint)
    request.inputs.add(name="X", datatype="FP32", shape=[1, floats])
    request.raw_input_contents.append(np.zeros(floats, np.float32).tobytes())
    with ClosedLoop(triton.grpc, [request.SerializeToString()], loops) as loop:
        loop.wait_for(n // 10, deadline_s=60)
        first, before = loop.answered, cpu_s(process)
        loop.wait_for(first + n, deadline_s=120)
        spent, answered = cpu_s(process) - before, loop.answered - first
        answers = loop.answers(first)
    passed = float(answers.ended_s[-1] - answers.ended_s[0])
    return Seen(answers.latency_ms, (answers.ended_s.size - 1) / passed, 1e6 * spent / answered)


def cpu_s(process: psutil.Process) -> float:
    return sum(sum(p.cpu_times()[:2]) for p in (process, *process.children(recursive=True)))


def compare(
    triton: BareTriton, process: psutil.Process, floats: int, loops: int, n: int, rounds: int
) -> tuple[str, float]:
    """Return a row of the table, and the alias' processor time a request over the model's own."""
    seen: dict[str, list[Seen]] = {endpoint: [] for endpoint in ENDPOINTS}
    for turn in range(rounds):
        for endpoint in ENDPOINTS[:: 1 if turn % 2 else -1]:
            seen[endpoint].append(drive(triton, process, endpoint, floats, loops, n))
    columns, ratio = [], 0.0
    for find in (
        lambda runs: np.percentile(np.concatenate([r.latency_ms for r in runs]), 50),
        lambda runs: np.percentile(np.concatenate([r.latency_ms for r in runs]), 99),
        lambda runs: np.median([r.rate_rps for r in runs]),
        lambda runs: np.median([r.triton_us for r in runs]),
    ):
        own, alias = (float(find(seen[endpoint])) for endpoint in ENDPOINTS)
        ratio = alias / own  # the last one is processor time
        columns.append(f"{own:9.3f}{alias:9.3f}" if own < 100 else f"{own:9.0f}{alias:9.0f}")
    return "".join(columns), ratio


def main() -> int:
    figures = Figures()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="runs of each endpoint, in turn")
    parser.add_argument("--requests", type=int, default=600, help="requests a run, a third of the large ones")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "source", "copy")
        (source / "1").mkdir(parents=True)
        (source / "config.pbtxt").write_text(CONFIG)
        (source / "1" / "model.py").write_text(MODEL)
        placements = tuple(Placement(e, e, "copy", rate_rps=1, slo_ms=1) for e in ENDPOINTS)
        partition = Partition("P", 100, (ServedModel("copy", 8),), placements)
        tree = render_partition(partition, gpu_type="cpu", repository=source.parent)
        write_tree(Path(directory, "models"), tree)
        with bare_triton(Path(directory, "models"), Path(directory, "log")) as triton:
            (process,) = [p for p in psutil.Process().children() if "tritonserver" in p.name()]
            names = ("p50 ms", "p99 ms", "answers/s", "CPU us/req")
            print(f"{'':<36}" + "".join(f"{name:>18}" for name in names))
            print(f"{'tensor':<22}{'under way':>14}" + f"{'model':>9}{'alias':>9}" * len(names))
            for size, floats in SIZES.items():
                count = asked.requests // 3 if floats > 1000 else asked.requests
                for loops in (1, 32):
                    row, ratio = compare(triton, process, floats, loops, count, asked.rounds)
                    name = f"CPU of the alias over the model's, {size}, {loops} under way"
                    figures.add(name, ratio, at_most=MOST_RATIO)
                    print(f"{size:<22}{loops:>14}{row}", flush=True)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
