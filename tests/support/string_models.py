"""Models of the Python backend that take texts and refuse those that do not begin as they want."""

from __future__ import annotations

import struct
from pathlib import Path

_MODEL = """
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
_CONFIG = """backend: "python"
max_batch_size: 4
input [ { name: "T", data_type: TYPE_STRING, dims: [ 1 ] } ]
output [ { name: "N", data_type: TYPE_STRING, dims: [ 1 ] } ]
"""
_WARMUP = """
model_warmup [ {
  name: "sample"
  batch_size: 1
  inputs { key: "T" value { data_type: TYPE_STRING dims: [ 1 ] input_data_file: "text" } }
} ]
"""


def write_model(repository: Path, name: str, prefix: bytes, wanted: str) -> None:
    """A model that takes texts with this prefix; `wanted` is what it says of others."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_MODEL.format(prefix=prefix, wanted=wanted))
    (version.parent / "config.pbtxt").write_text(_CONFIG)


def write_sample(repository: Path, name: str, text: bytes) -> None:
    """The model's own sample, as Triton takes one for its warm-up."""
    (repository / name / "config.pbtxt").write_text(_CONFIG + _WARMUP)
    (repository / name / "warmup").mkdir()
    (repository / name / "warmup" / "text").write_bytes(struct.pack("<I", len(text)) + text)
