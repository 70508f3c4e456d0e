"""Small models that need a particular way of sending: decoupled, sequences, a sample of their own."""

from __future__ import annotations

from pathlib import Path

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
_NUMBER = """backend: "python"
max_batch_size: 4
input [ { name: "X", data_type: TYPE_FP32, dims: [ 1 ] } ]
output [ { name: "Y", data_type: TYPE_FP32, dims: [ 1 ] } ]
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


def write_ticks(repository: Path) -> None:
    """Write `ticks`, which is decoupled and answers three times."""
    _write(repository / "ticks", _TICKS, _NUMBER + "model_transaction_policy { decoupled: true }")


def write_sums(repository: Path) -> None:
    """Write `sums`, which adds up the numbers of a sequence."""
    _write(repository / "sums", _SUMS, _NUMBER + _SEQUENCES)


def write_scales(repository: Path) -> None:
    """Write `scales`, which refuses zeros, brings a sample and has an optional input."""
    _write(repository / "scales", _SCALES, _NUMBER + _SAMPLE)
    (repository / "scales" / "warmup").mkdir()
    (repository / "scales" / "warmup" / "one").write_bytes(_ONE)


def _write(folder: Path, code: str, config: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(code)
    (folder / "config.pbtxt").write_text(config)
