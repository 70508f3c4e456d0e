"""A repository with two models that take processor time, an ensemble of both and a model that calls both."""

from __future__ import annotations

from pathlib import Path

_WORK = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(r, "X").as_numpy() for r in requests]
        ends = time.thread_time() + 0.001 * (FIXED + EACH * sum(len(x) for x in given))
        while time.thread_time() < ends:
            pass
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + 1)]) for x in given]
"""
_CALLS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(r, "X").as_numpy() for r in requests]
        done = self._ask("second", self._ask("first", np.concatenate(given)))
        parts = np.split(done, np.cumsum([len(x) for x in given])[:-1])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", part)]) for part in parts]

    def _ask(self, model, x):
        asked = pb_utils.InferenceRequest(
            model_name=model, requested_output_names=["Y"], inputs=[pb_utils.Tensor("X", x)]
        )
        answer = asked.exec()
        if answer.has_error():
            raise pb_utils.TritonModelException(answer.error().message())
        return pb_utils.get_output_tensor_by_name(answer, "Y").as_numpy()
"""
_TENSORS = """max_batch_size: 8
input [ { name: "X", data_type: TYPE_FP32, dims: [ 1 ] } ]
output [ { name: "Y", data_type: TYPE_FP32, dims: [ 1 ] } ]
"""
_DECLARED = """parameters { key: "composing_models" value { string_value: "first,second" } }
"""
_STEPS = """platform: "ensemble"
ensemble_scheduling { step [
  { model_name: "first" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "Y" value: "between" } },
  { model_name: "second" model_version: -1
    input_map { key: "X" value: "between" } output_map { key: "Y" value: "Y" } }
] }
"""


def write_models(repository: Path, *, fixed_ms: float = 2.0, each_ms: float = 1.0) -> None:
    """Write `first`, `second`, the ensemble `pipeline` and the caller `calls`; each adds 2 to X in the end.

    An execution of b inferences of `first` or of `second` takes fixed_ms + b each_ms of processor time.
    """
    work = f"FIXED, EACH = {fixed_ms}, {each_ms}\n{_WORK}"
    python = 'backend: "python"\n' + _TENSORS
    for name, config, code in (
        ("first", python, work),
        ("second", python, work),
        ("calls", python + _DECLARED, _CALLS),
        ("pipeline", _STEPS + _TENSORS, None),
    ):
        version = repository / name / "1"
        version.mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        if code is not None:
            (version / "model.py").write_text(code)
