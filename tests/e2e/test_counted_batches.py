"""Ten thousand requests to a Triton whose batch changes: by its own statistics none is above the limit."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from background import Clients, until
from bare_triton import BareTriton, bare_triton
from model_files import write

from controlplane.domain.fleet import BATCH_LIBRARY
from launchers.triton import batches
from launchers.triton.batches import BatchFiles, environment

pytestmark = pytest.mark.long

REQUESTS, CLIENTS = 10_000, 24
SIZES, LIMITS = (1, 2, 3), (3, 4, 5, 7, 8, 11, 16)
FORMED_BEFORE = 3
"""Batches that may have been formed before a change: one that executes, and two that wait."""
MODEL = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(r, "X").as_numpy() for r in requests]
        sums = [pb_utils.Tensor("Y", t.sum(axis=1, keepdims=True)) for t in tensors]
        return [pb_utils.InferenceResponse([one]) for one in sums]
"""
CONFIG = """\
backend: "python"
max_batch_size: 32
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { preferred_batch_size: [ 32 ] }
"""


class Load(Clients):
    """Requests of 1 to 3 inferences, each of 1 to 5 numbers, over HTTP and gRPC in turns."""

    def __init__(self, running: BareTriton) -> None:
        super().__init__(CLIENTS)
        self._running = running

    def call(self, number: int) -> Callable[[], object]:
        """One request, and whether its answer is right."""
        module = triton_grpc if number % 2 else triton_http
        client = module.InferenceServerClient(self._running.grpc if number % 2 else self._running.http)
        chance = random.Random(number)

        def send() -> None:
            sent = np.full((chance.choice(SIZES), chance.randint(1, 5)), number, dtype=np.float32)
            x = module.InferInput("X", list(sent.shape), "FP32")
            x.set_data_from_numpy(sent)
            found = client.infer("m", [x]).as_numpy("Y")
            assert np.array_equal(found, sent.sum(axis=1, keepdims=True)), found

        return send


def executions(running: BareTriton) -> Counter[int]:
    with triton_http.InferenceServerClient(running.http) as client:
        (stats,) = client.get_inference_statistics("m")["model_stats"]
    return Counter({int(b["batch_size"]): int(b["compute_infer"]["count"]) for b in stats["batch_stats"]})


def test_no_batch_is_above_the_limit_whatever_the_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, files = batches.library(), BatchFiles(tmp_path / "files")
    assert library is not None, "make setup builds it"
    folder = write(tmp_path / "models", "m", MODEL, CONFIG)
    (folder / BATCH_LIBRARY).symlink_to(library)
    limits = [LIMITS[i % len(LIMITS)] for i in range(20)]
    random.Random(5).shuffle(limits)
    planned = (("m", limits[0]),)
    files.make(planned, shared=False)
    for name, value in environment(planned, files).items():
        monkeypatch.setenv(name, value)
    above, reached = Counter[int](), 0
    with bare_triton(tmp_path / "models", tmp_path / "log") as running, Load(running) as clients:
        assert files.unanswered() == ()
        for i, limit in enumerate(limits):
            files.set((("m", limit),))
            until(lambda: executions(running).total() > FORMED_BEFORE, 30.0, "it serves")
            before = executions(running).total()
            until(lambda before=before: executions(running).total() > before + FORMED_BEFORE, 30.0, "settled")
            settled, wanted = executions(running), REQUESTS * (i + 1) // len(limits)
            until(lambda wanted=wanted: clients.done >= wanted, 120.0, f"{wanted} requests")
            grown = executions(running) - settled
            above += Counter({size: count for size, count in grown.items() if size > limit})
            reached += grown[limit] > 0
    assert clients.failed == []
    assert clients.done >= REQUESTS
    assert above == Counter()
    assert reached > len(limits) // 2, "clients fill batches up to the limit"
