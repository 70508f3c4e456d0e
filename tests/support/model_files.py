"""Models of the Python backend for tests and benches, written into a repository.

Timed ones, texts, an ensemble and its parts, and those that need a particular way of sending.
"""

import struct
from pathlib import Path

NUMBER = """backend: "python"
max_batch_size: 8
input [ { name: "X", data_type: TYPE_FP32, dims: [ 1 ] } ]
output [ { name: "Y", data_type: TYPE_FP32, dims: [ 1 ] } ]
"""
"""The configuration of a model that takes a number and gives one."""
_TIMED = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        began = time.{clock}()
        given = [pb_utils.get_input_tensor_by_name(r, "X").as_numpy() for r in requests]
        ends = began + ({fixed_ms} + {each_ms} * sum(len(x) for x in given)) / 1000
        while (left := ends - time.{clock}()) > 0:
            {wait}
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x{plus})]) for x in given]
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
_TICKS = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            tensor = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            for _ in range(3):
                time.sleep(0.005)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_SUMS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        names = ("X", "ID", "FIRST", "LAST")
        values = {n: pb_utils.get_input_tensor_by_name(request, n).as_numpy() for n in names}
        key = int(values["ID"].flat[0])
        if values["FIRST"].flat[0] == (key in self.sums):
            return pb_utils.InferenceResponse([], pb_utils.TritonError("not a whole sequence"))
        self.sums[key] = self.sums.get(key, 0) + values["X"]
        total = self.sums.pop(key) if values["LAST"].flat[0] else self.sums[key]
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", total)])
"""
_SCALES = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        if not (x > 0).all():
            return pb_utils.InferenceResponse([], pb_utils.TritonError("X must be above 0"))
        factor = pb_utils.get_input_tensor_by_name(request, "FACTOR")
        y = x if factor is None else x * factor.as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)])
"""
_SEQUENCES = """sequence_batching { control_input [
  { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] },
  { name: "FIRST" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
  { name: "LAST" control [ { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } ] }
] }
"""
_SAMPLE = """input [ { name: "FACTOR", data_type: TYPE_FP32, dims: [ 1 ], optional: true } ]
model_warmup [ { name: "one" batch_size: 1 inputs {
  key: "X" value { data_type: TYPE_FP32 dims: [ 1 ] input_data_file: "one" } } } ]
"""
_ONE = b"\x00\x00\x80\x3f"
_TEXT = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(pb_utils.get_input_tensor_by_name(r, "T").as_numpy()) for r in requests]

    def _answer(self, texts):
        text = texts.reshape(-1)[0]
        if not text.startswith({prefix!r}) or not text:
            error = pb_utils.TritonError("wants {wanted}, not " + repr(text[:9]))
            return pb_utils.InferenceResponse([], error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("N", texts.astype(bytes).view("S1")[:, :1])])
"""
_TEXT_CONFIG = """backend: "python"
max_batch_size: 4
input [ { name: "T", data_type: TYPE_STRING, dims: [ 1 ] } ]
output [ { name: "N", data_type: TYPE_STRING, dims: [ 1 ] } ]
"""
_TEXT_SAMPLE = """
model_warmup [ {
  name: "sample"
  batch_size: 1
  inputs { key: "T" value { data_type: TYPE_STRING dims: [ 1 ] input_data_file: "text" } }
} ]
"""


def write(repository: Path, name: str, code: str, config: str = "") -> Path:
    """Write a model, with its configuration where there is one; return its folder."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(code)
    if config:
        (folder / "config.pbtxt").write_text(config)
    return folder


def timed(fixed_ms: float, each_ms: float = 0.0, *, works: bool = False, plus: str = "") -> str:
    """The code of a model whose executions of b inferences take fixed_ms + b each_ms.

    It sleeps for so long, whatever else runs; where it `works` it takes as much processor time.
    """
    clock, wait = ("thread_time", "pass") if works else ("perf_counter", "time.sleep(left)")
    return _TIMED.format(clock=clock, wait=wait, fixed_ms=fixed_ms, each_ms=each_ms, plus=plus)


def write_composed(repository: Path, *, fixed_ms: float = 2.0, each_ms: float = 1.0) -> None:
    """Write `first`, `second`, the ensemble `pipeline` and the caller `calls`; each adds 2 to X in the end.

    An execution of b inferences of `first` or of `second` takes fixed_ms + b each_ms of processor time.
    """
    for name in ("first", "second"):
        write(repository, name, timed(fixed_ms, each_ms, works=True, plus=" + 1"), NUMBER)
    write(repository, "calls", _CALLS, NUMBER + _DECLARED)
    (repository / "pipeline" / "1").mkdir(parents=True)
    config = _STEPS + NUMBER.removeprefix('backend: "python"\n')
    (repository / "pipeline" / "config.pbtxt").write_text(config)


def write_ticks(repository: Path) -> None:
    """Write `ticks`, which is decoupled and answers three times."""
    write(repository, "ticks", _TICKS, NUMBER + "model_transaction_policy { decoupled: true }")


def write_sums(repository: Path) -> None:
    """Write `sums`, which adds up the numbers of a sequence."""
    write(repository, "sums", _SUMS, NUMBER + _SEQUENCES)


def write_scales(repository: Path) -> None:
    """Write `scales`, which refuses zeros, brings a sample and has an optional input."""
    folder = write(repository, "scales", _SCALES, NUMBER + _SAMPLE)
    (folder / "warmup").mkdir()
    (folder / "warmup" / "one").write_bytes(_ONE)


def write_texts(repository: Path, name: str, prefix: bytes, wanted: str) -> None:
    """Write a model that takes texts with this prefix; `wanted` is what it says of others."""
    write(repository, name, _TEXT.format(prefix=prefix, wanted=wanted), _TEXT_CONFIG)


def write_text_sample(repository: Path, name: str, text: bytes) -> None:
    """Write the sample of a model of texts, as Triton takes one for its warm-up."""
    (repository / name / "config.pbtxt").write_text(_TEXT_CONFIG + _TEXT_SAMPLE)
    (repository / name / "warmup").mkdir()
    (repository / name / "warmup" / "text").write_bytes(struct.pack("<I", len(text)) + text)
