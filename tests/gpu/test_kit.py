"""The kit's runner and its report, without servers."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controlplane.domain.device import ShareKind
from controlplane.domain.profile import Measurement, Profile
from controlplane.files.measurements.profiles import write_partial
from controlplane.profiler.session import Profiler
from gpu_kit import run, steps
from gpu_kit.build import NOT_IN_PROBE
from gpu_kit.report import JSON, TEXT, Ran, Report, read
from gpu_kit.subject import MODEL, Subject

pytestmark = pytest.mark.unit

SLOW = """
import json, sys, time
print(json.dumps(["first", {"ms": 1.5}]), flush=True)
print('["half', end="", flush=True)
time.sleep({"slow": 60, "quick": 0, "clean": 0}[sys.argv[1]])
sys.exit(3 if sys.argv[1] == "quick" else 0)
"""


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    report = Report("2026-11-26", "gpu", "a fake", [Ran("host", "done", 1.0, {"rows": [{"ms": 1.25}]})])
    report.write(tmp_path)
    assert read(tmp_path / JSON) == report
    text = (tmp_path / TEXT).read_text()
    assert "rehearsal: a fake" in text
    assert "ms 1.25" in text


@pytest.mark.parametrize(
    ("rehearsal", "outcomes", "held"),
    [
        ("", {"host": "done", "kernels": "done", "torch": "done"}, True),
        ("", {"host": "done", "kernels": "done", "torch": "not run"}, True),
        ("", {"host": "done", "kernels": "not run"}, False),
        ("a core", {"host": "done", "kernels": "not run"}, True),
        ("a core", {"host": "done", "kernels": "cut off"}, False),
        ("", {"kernels": "failed"}, False),
        ("", {}, False),
    ],
)
def test_a_report_of_a_gpu_holds_where_its_steps_were_done(
    rehearsal: str, outcomes: dict[str, str], held: bool
) -> None:
    ran = [Ran(name, outcome) for name, outcome in outcomes.items()]
    assert Report("2026-11-26", "gpu", rehearsal, ran).held is held


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Steps that are programs of this test."""
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.argv[1:3] = []\n{SLOW}")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(run, "LIMITS_S", {"slow": 2.0, "quick": 30.0})


@pytest.mark.usefixtures("programs")
def test_a_step_that_is_cut_off_leaves_its_figures_and_the_next_one_runs(tmp_path: Path) -> None:
    assert run.main(["--device", "cpu", "--out", str(tmp_path / "out")]) == 1
    told = json.loads((tmp_path / "out" / JSON).read_text())
    assert [step["outcome"] for step in told["steps"]] == ["cut off", "not run"]
    assert [step["figures"] for step in told["steps"]] == [{"first": {"ms": 1.5}}] * 2


@pytest.mark.usefixtures("programs")
def test_without_time_a_step_is_not_begun(tmp_path: Path) -> None:
    assert run.main(["--device", "cpu", "--out", str(tmp_path / "out"), "--seconds", "0"]) == 1
    assert {step.reason for step in read(tmp_path / "out" / JSON).steps} == {"no time was left"}


def test_a_profile_that_is_cut_off_leaves_its_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(profiler: Profiler, *_: object, **__: object) -> None:
        points = (Measurement(50.0, 4, 8.5),)
        write_partial(profiler.profiles, Profile(MODEL, "cpu", ShareKind.CPU_QUOTA, points=points))
        sys.exit(143)

    monkeypatch.setattr(Profiler, "measure", cut_off)
    recorded: dict[str, Any] = {}
    with pytest.raises(SystemExit):
        steps.profile(Subject.of("cpu", tmp_path, True, {}), recorded.__setitem__)
    assert [(p["percent"], p["batch"], p["execution_ms"]) for p in recorded["points"]] == [(50.0, 4, 8.5)]


PROGRAMS = (
    "gpu_kit.run",
    "gpu_kit.steps",
    "launchers.gpu.probe",
    "controlplane.cli.main",
    "controlplane.cli.fleet.changing",
    "controlplane.runtime.controller.loop",
    "controlplane.gateway.facade",
    "controlplane.gateway.supervise",
    "controlplane.monitor.collect",
)
"""What the probe's processes run."""


def test_the_probe_runs_without_what_is_left_out_of_it() -> None:
    absent = f"import sys; sys.modules.update(dict.fromkeys({NOT_IN_PROBE!r}))"
    code = "\n".join([absent, *(f"import {program}" for program in PROGRAMS)])
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr


def test_the_known_models_are_those_of_their_papers() -> None:
    """By their numbers of parameters; BERT-base's without its positions, segments and pooling."""
    pytest.importorskip("torch", reason="MODELS NOT BUILT: no PyTorch")
    torch_models = importlib.import_module("gpu_kit.torch_models")
    models = torch_models.resnet50(), torch_models.bert_base()
    resnet, bert = (sum(one.numel() for one in model.parameters()) for model in models)
    assert resnet == 25_557_032
    assert bert == 30522 * 768 + 12 * 7_087_872


def test_the_known_models_are_measured_in_a_program_of_their_own() -> None:
    code = "from gpu_kit import torch_models as it; it.BATCHES, it.SECONDS = (1,), 0.0; it.main('cpu')"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if told.returncode == 3:
        pytest.skip("MODELS NOT MEASURED: no PyTorch")
    found = json.loads(told.stdout)
    assert min(found["resnet50"]["batch 1"], found["bert_base"]["batch 1"]) > 0.0
