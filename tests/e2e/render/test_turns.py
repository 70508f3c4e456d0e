"""Two models in one partition on a real Triton: one executes at a time, and which one goes next."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from queue import Queue

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from bare_triton import BareTriton, bare_triton
from model_files import NUMBER, write

from controlplane.domain.plan import Partition, Placement, ServedModel
from controlplane.files.rendered import write_tree
from controlplane.render.repository import render_partition

MS = {"short": 5, "long": 60}
BATCH = 4
POISSON_S = 4.0
REACHED_S = 0.01
ATTEMPTS = 5
"""A host that stalls lets requests arrive late that were sent together: such a run is made again."""
MODEL = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        began = time.monotonic()
        time.sleep({ms} / 1000)
        with open({log!r}, "a") as out:
            out.write(f"{name} {{began}} {{time.monotonic()}} {{len(requests)}}\\n")
        inputs = [pb_utils.get_input_tensor_by_name(r, "X").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]) for x in inputs]
"""


@dataclass(frozen=True)
class Batch:
    model: str
    began: float
    ended: float
    size: int


@dataclass(frozen=True)
class Shared:
    """The running server and what its models executed."""

    triton: BareTriton
    log: Path

    def executed(self, *backlog: tuple[str, int]) -> list[Batch]:
        """Send so many requests of each model at once, in this order; what was executed, in order."""
        self.log.write_text("")
        with triton_grpc.InferenceServerClient(self.triton.grpc) as client:
            tensor = triton_grpc.InferInput("X", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.zeros((1, 1), np.float32))
            answered: Queue[Exception | None] = Queue()
            for model, count in backlog:
                for _ in range(count):
                    client.async_infer(model, [tensor], callback=lambda result, error: answered.put(error))
            errors = [answered.get(timeout=60.0) for _ in range(sum(count for _, count in backlog))]
            assert errors == [None] * len(errors)
        rows = [line.split() for line in self.log.read_text().splitlines()]
        return [Batch(m, float(began), float(ended), int(size)) for m, began, ended, size in rows]

    def executions(self) -> dict[str, int]:
        """How often each model executed since the server started."""
        with triton_grpc.InferenceServerClient(self.triton.grpc) as client:
            models = client.get_inference_statistics(as_json=True)["model_stats"]
        return {m["name"]: int(m.get("execution_count", 0)) for m in models}

    def under(self, due: Sequence[tuple[float, str]]) -> tuple[list[tuple[float, str]], list[Batch]]:
        """Send a request of a model at each of these times; when each was sent, and what was executed."""
        self.log.write_text("")
        with triton_grpc.InferenceServerClient(self.triton.grpc) as client:
            tensor = triton_grpc.InferInput("X", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.zeros((1, 1), np.float32))
            answered: Queue[Exception | None] = Queue()
            begin, sent = time.monotonic(), []
            for at, model in due:
                time.sleep(max(begin + at - time.monotonic(), 0.0))
                client.async_infer(model, [tensor], callback=lambda result, error: answered.put(error))
                sent.append((time.monotonic(), model))
            assert [answered.get(timeout=60.0) for _ in due] == [None] * len(due)
        rows = [line.split() for line in self.log.read_text().splitlines()]
        return sent, [Batch(m, float(began), float(ended), int(size)) for m, began, ended, size in rows]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    directory = tmp_path_factory.mktemp("turns")
    log = directory / "executed"
    for name, ms in MS.items():
        code = MODEL.format(ms=ms, log=str(log), name=name)
        write(directory / "source", name, code, NUMBER)
    partition = Partition(
        "P1",
        100,
        models=tuple(ServedModel(model, BATCH) for model in MS),
        workloads=tuple(Placement(m, m, m, rate_rps=1, slo_ms=1) for m in MS),
    )
    write_tree(
        directory / "models", render_partition(partition, gpu_type="cpu", repository=directory / "source")
    )
    # The option with which launchers start a server whose models take turns.
    with bare_triton(directory / "models", directory / "log", "--rate-limit=execution_count") as running:
        yield Shared(running, log)


def test_one_of_the_models_executes_at_a_time(shared: Shared) -> None:
    batches = shared.executed(("long", 6), ("short", 12))
    assert sum(b.size for b in batches) == 18
    assert {b.model for b in batches} == set(MS)
    for before, after in pairwise(batches):
        assert after.began >= before.ended


def test_what_waits_for_its_turn_fills_a_batch(shared: Shared) -> None:
    """While a long batch runs, short requests gather up to their own batch."""
    runs = (shared.executed(("long", 1), ("short", 2 * BATCH)) for _ in range(ATTEMPTS))
    largest = (max(b.size for b in run if b.model == "short") for run in runs)
    # A host that stands still sends them one by one.
    assert next(size for size in largest if size >= BATCH) == BATCH


def test_under_poisson_arrivals_the_order_is_the_one_that_is_simulated(shared: Shared) -> None:
    """Where both models wait, the one with fewer executions goes next: `ctl simulate` rests on it."""
    random = np.random.default_rng(1)
    due = sorted(
        (float(at), model)
        for model, rate in (("short", 60.0), ("long", 10.0))
        for at in random.uniform(0.0, POISSON_S, round(rate * POISSON_S))
    )
    seen = []
    for _ in range(ATTEMPTS):
        decisions, against = decided(shared, due)
        seen.append((decisions, against))
        if decisions > 5 and against <= 0.1 * decisions:
            return
    raise AssertionError(seen)


def decided(shared: Shared, due: Sequence[tuple[float, str]]) -> tuple[int, int]:
    """How often both models waited at the end of a batch, and how often the other one of them went next."""
    executed = shared.executions()
    sent, batches = shared.under(due)
    assert sum(b.size for b in batches) == len(due)
    started = dict.fromkeys(MS, 0)
    against = decisions = 0
    for before, batch in pairwise(batches):
        executed[before.model] += 1
        started[before.model] += before.size
        # What was sent just before may not have reached the server when it decided.
        there = Counter(model for at, model in sent if at < before.ended - REACHED_S)
        (other,) = set(MS) - {batch.model}
        if all(there[m] > started[m] for m in MS) and executed[batch.model] != executed[other]:
            decisions += 1
            against += executed[batch.model] > executed[other]
    return decisions, against


def test_the_model_with_fewer_executions_goes_first(shared: Shared) -> None:
    for _ in range(8):
        shared.executed(("short", 1))
    runs = (shared.executed(("long", 3 * BATCH), ("short", 3 * BATCH)) for _ in range(ATTEMPTS))
    assert any(waiting == sorted(waiting) for waiting in map(from_the_first_long, runs))


def from_the_first_long(batches: Sequence[Batch]) -> list[str]:
    """The models in their order: every long batch comes before the next short one."""
    first = next(n for n, b in enumerate(batches) if b.model == "long")
    return [b.model for b in batches[first:]]
