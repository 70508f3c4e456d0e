"""Detection of models that execute other models."""

from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.render.repository import in_turn
from controlplane.render.source import Calls, called_models, read_source, step_limits, stubs, with_composing

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
    assert called_models(write(tmp_path, CALLER)) == Calls(("detect",), computed=True)


def test_calls_are_found_in_what_the_model_imports_from_its_folder(tmp_path: Path) -> None:
    call = "InferenceRequest(model_name={!r})"
    model = write(tmp_path, "from steps.call import run\ndef late():\n    import helpers\n")
    (model / "1" / "steps").mkdir()
    (model / "1" / "steps" / "__init__.py").write_text(call.format("package"))
    (model / "1" / "steps" / "call.py").write_text("from . import more\n" + call.format("module"))
    (model / "1" / "steps" / "more.py").write_text("from ..beyond import x\n" + call.format("relative"))
    (model / "1" / "beyond.py").write_text(call.format("above"))
    (model / "helpers.py").write_text(call.format("beside"))
    assert called_models(model) == Calls(("above", "beside", "module", "package", "relative"), computed=False)


def test_files_that_the_model_does_not_import_call_nothing(tmp_path: Path) -> None:
    model = write(tmp_path, "import json\n")
    for name in ("model copy.py", "old_model.py"):
        (model / "1" / name).write_text(CALLER)
    assert called_models(model) is None
    assert called_models(model, "old_model.py") is not None


def test_imports_from_beyond_the_folder_of_the_model_are_not_followed(tmp_path: Path) -> None:
    model = write(tmp_path, "from ...beside import x\nfrom ............................. import y\n")
    (tmp_path / "beside.py").write_text(CALLER)
    assert called_models(model) is None


def test_code_that_only_mentions_the_call_calls_none(tmp_path: Path) -> None:
    assert called_models(write(tmp_path, "# pb_utils.InferenceRequest(model_name='x')\n")) is None


def test_code_that_cannot_be_parsed_calls_none(tmp_path: Path) -> None:
    assert called_models(write(tmp_path, "def (")) is None


TENSORS = """
input [ { name: "X", data_type: TYPE_FP32, dims: [ 1 ] } ]
output [ { name: "Y", data_type: TYPE_FP32, dims: [ 1 ] } ]
"""
STEPS = """platform: "ensemble" max_batch_size: 4 ensemble_scheduling {
  step [ { model_name: "detect" model_version: -1 }, { model_name: "classify" model_version: -1 } ] }
"""


def add(repository: Path, name: str, config: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config + TENSORS)


def test_the_steps_of_an_ensemble_are_read_with_it(tmp_path: Path) -> None:
    add(tmp_path, "e", STEPS)
    add(tmp_path, "outer", STEPS.replace("detect", "e"))
    add(tmp_path, "detect", 'backend: "python" max_batch_size: 8')
    add(tmp_path, "classify", 'backend: "b"')
    outer = read_source(tmp_path, "outer")
    assert [one.name for one in outer.composing] == ["classify", "e"]
    assert [one.name for one in outer.composing[1].composing] == ["classify", "detect"]
    assert set(with_composing(tmp_path, ["outer"])) == {"outer", "e", "detect", "classify"}
    assert step_limits(outer) == {"e": 1, "detect": 8, "classify": 1}
    assert stubs(outer) == {"detect": 1}


def test_computed_names_have_to_be_declared(tmp_path: Path) -> None:
    directory = write(tmp_path, CALLER)
    (directory / "config.pbtxt").write_text('backend: "python"' + TENSORS)
    for name in ("detect", "classify"):
        add(tmp_path, name, 'backend: "b"')
    with pytest.raises(InputError, match=r"executes models besides detect whose names its code computes"):
        read_source(tmp_path, "m")
    declared = 'parameters { key: "composing_models" value { string_value: "detect, classify" } }'
    (directory / "config.pbtxt").write_text('backend: "python"' + TENSORS + declared)
    assert [one.name for one in read_source(tmp_path, "m").composing] == ["classify", "detect"]


@pytest.mark.parametrize("several", [False, True])
def test_an_ensemble_answers_several_times_where_a_step_of_it_does(tmp_path: Path, several: bool) -> None:
    written, of_step = (
        f"model_transaction_policy {{ decoupled: {b} }}".lower() for b in (not several, several)
    )
    add(tmp_path, "e", STEPS + written)
    add(tmp_path, "outer", STEPS.replace("detect", "e"))
    add(tmp_path, "classify", 'backend: "b"')
    add(tmp_path, "detect", f'backend: "b" {of_step}')
    outer = read_source(tmp_path, "outer")
    assert outer.config.model_transaction_policy.decoupled is several
    assert in_turn(outer) is not several, "its first answer would wait for the last one of the step"


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (None, "executes 'detect', and .*there is no such model directory"),
        ('backend: "b" sequence_batching { }', "executes 'detect', which keeps state between requests"),
        (STEPS.replace("detect", "e"), "executes itself: e -> detect -> e"),
    ],
)
def test_steps_that_cannot_be_served_are_refused_with_the_reason(
    tmp_path: Path, step: str | None, said: str
) -> None:
    add(tmp_path, "e", STEPS.replace("classify", "detect"))
    if step is not None:
        add(tmp_path, "detect", step)
        add(tmp_path, "classify", 'backend: "b"')
    with pytest.raises(InputError, match=said):
        read_source(tmp_path, "e")
