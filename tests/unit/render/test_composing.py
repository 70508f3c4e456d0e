"""Detection of models that execute other models."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.render.composing import called_models
from controlplane.render.source import read_source

pytestmark = pytest.mark.unit

CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        pb_utils.InferenceRequest(model_name="detect", requested_output_names=["Y"], inputs=[]).exec()
        pb_utils.InferenceRequest(model_name=self.second, requested_output_names=["Y"], inputs=[]).exec()
"""


def write(directory: Path, code: str) -> Path:
    (directory / "m" / "1").mkdir(parents=True)
    (directory / "m" / "1" / "model.py").write_text(code)
    (directory / "m" / "config.pbtxt").write_text('backend: "python"')
    return directory / "m"


def test_called_models_are_found_by_name(tmp_path: Path) -> None:
    assert called_models(write(tmp_path, CALLER)) == ("detect",)


def test_code_that_only_mentions_the_call_calls_none(tmp_path: Path) -> None:
    assert called_models(write(tmp_path, "# pb_utils.InferenceRequest(model_name='x')\n")) is None


def test_code_that_cannot_be_parsed_calls_none(tmp_path: Path) -> None:
    assert called_models(write(tmp_path, "def (")) is None


def test_a_model_that_executes_others_is_refused_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path, CALLER)
    with pytest.raises(InputError, match=r"executes other models itself \(detect\)"):
        read_source(tmp_path, "m")
