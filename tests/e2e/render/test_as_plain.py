"""What a user configured beside the batch holds in a partition as on a Triton with the user's repository."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from bare_triton import BareTriton, bare_triton

from controlplane.domain.plan import Partition, Placement, ServedModel
from controlplane.files.rendered import write_tree
from controlplane.render.repository import render_partition

CODE = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.seen = {}

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            if x.flat[0] > 5:
                time.sleep(0.5)
            key = request.correlation_id()
            self.seen[key] = self.seen.get(key, 0) + x
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.seen[key] if key else x)]))
        return answers
"""
TENSORS = """
backend: "python"
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
IDLE = "max_sequence_idle_microseconds: 20000000"
THREE, TWO = (f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]" for count in (3, 2))
CONFIGS = {
    "direct": f"sequence_batching {{ {IDLE} direct {{ }} }} {THREE}",
    "oldest": f"sequence_batching {{ {IDLE} oldest {{ max_candidate_sequences: 2 }} }} {TWO}",
    "limited": "dynamic_batching { default_queue_policy { max_queue_size: 2 } }",
    "passive": "instance_group [ { passive: true kind: KIND_CPU }, { kind: KIND_CPU } ]",
}


@pytest.fixture(scope="module", params=["the user's repository", "a partition's"])
def triton(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareTriton]:
    directory = tmp_path_factory.mktemp("as-plain")
    for name, config in CONFIGS.items():
        (directory / "models" / name / "1").mkdir(parents=True)
        (directory / "models" / name / "1" / "model.py").write_text(CODE)
        (directory / "models" / name / "config.pbtxt").write_text(TENSORS + config)
    served, options = directory / "models", []
    if request.param == "a partition's":
        served, options = rendered(directory), ["--rate-limit=execution_count"]
    with bare_triton(served, directory / "log", *options) as running:
        yield running


def rendered(directory: Path) -> Path:
    partition = Partition(
        "P1",
        100,
        models=tuple(ServedModel(name, 1) for name in CONFIGS),
        workloads=tuple(Placement(name, name, name, rate_rps=1, slo_ms=1) for name in CONFIGS),
    )
    tree = render_partition(partition, gpu_type="cpu", repository=directory / "models")
    write_tree(directory / "rendered", tree)
    return directory / "rendered"


def infer(triton: BareTriton, model: str, value: int, **parameters: Any) -> tuple[int, Any]:
    tensor = {"name": "X", "datatype": "INT32", "shape": [1], "data": [value]}
    answer = httpx.post(
        f"http://{triton.http}/v2/models/{model}/infer",
        json={"inputs": [tensor], "parameters": parameters},
        trust_env=False,
        timeout=20,
    )
    content = answer.json()
    return answer.status_code, content["outputs"][0]["data"] if "outputs" in content else content["error"]


@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_as_many_sequences_live_at_once_as_there_are_places(triton: BareTriton, model: str) -> None:
    sequences = (1, 2, 3)
    for step in range(3):
        for number in sequences:
            ends = {"sequence_start": step == 0, "sequence_end": step == 2}
            assert infer(triton, model, number, sequence_id=number, **ends) == (200, [(step + 1) * number])


def test_a_queue_without_batching_keeps_its_limit(triton: BareTriton) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: infer(triton, "limited", 6), range(8)))
    refused = {(status, text) for status, text in answers if status != 200}
    assert [status for status, _ in refused] == [503]
    assert "queue size" in str(refused)


def test_a_group_that_executes_stands_beside_a_passive_one(triton: BareTriton) -> None:
    assert infer(triton, "passive", 3) == (200, [3])
