"""The survey of a repository, and the skeleton of a spec from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.tensors import Finding, Readiness
from controlplane.files.models import write_completed
from controlplane.files.plans import read_spec
from controlplane.runtime.jobs import survey as surveys
from controlplane.runtime.jobs.completing import Completer
from controlplane.runtime.jobs.survey import skeleton

WHOLE = """backend: "b" max_batch_size: 16
input [ { name: "X", data_type: TYPE_FP32, dims: [ 4 ] } ]
output [ { name: "Y", data_type: TYPE_FP32, dims: [ 4 ] } ]
"""


@dataclass
class Completes:
    """A completer that knows some configurations and fails for the other models that need one."""

    configs: Mapping[str, str] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()
    backends: frozenset[str] | None = None
    on_core: bool = True

    def complete(self, repository: Path, models: Sequence[str]) -> Mapping[str, str]:
        self.wanted = tuple(models)
        for model, config in self.configs.items():
            write_completed(repository / model, config)
        bare = [m for m in models if not (repository / m / "config.pbtxt").exists()]
        return {model: "no such weights" for model in bare if model not in self.configs}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def write(repository: Path, model: str, config: str | None) -> None:
    (repository / model / "1").mkdir(parents=True)
    if config is not None:
        (repository / model / "config.pbtxt").write_text(config)


def survey(repository: Path, completer: Completes) -> dict[str, Finding]:
    return {one.model: one for one in surveys.survey(repository, cast(Completer, completer))}


def test_each_model_is_judged_by_its_completed_configuration(repository: Path) -> None:
    write(repository, "whole", WHOLE)
    write(repository, "bare", None)
    write(repository, "broken", None)
    write(repository, "open", WHOLE.replace("[ 4 ]", "[ 3, -1 ]"))
    write(repository, "text", WHOLE.replace("FP32", "STRING"))
    write(repository, "mute", None)
    write(repository, "llm", WHOLE.replace('"b"', '"vllm"'))
    write(repository, "typo", "max_batch_size: many")
    write(repository, "two words", WHOLE)
    (repository / "notes").mkdir()

    completer = Completes({"bare": WHOLE, "mute": 'backend: "python"'})
    found = survey(repository, completer)

    assert {"typo", "two words"}.isdisjoint(completer.wanted)
    assert found["two words"].note.endswith("; rename its folder")
    assert {model: one.state.value for model, one in found.items()} == {
        "bare": "ready",
        "broken": "not supported",
        "llm": "not supported",
        "mute": "not supported",
        "open": "needs inputs",
        "text": "ready",
        "two words": "not supported",
        "typo": "not supported",
        "whole": "ready",
    }
    assert [model for model, one in found.items() if one.completed] == ["bare"]
    assert found["broken"].note == "Triton does not load it: no such weights"
    assert "--shape open:X:3,N" in found["open"].note
    assert "--input-data text:FILE" in found["text"].note
    assert "schedules its requests itself" in found["llm"].note
    assert "inputs and outputs" in found["mute"].note
    assert found["typo"].note.startswith("config.pbtxt:1: is not a model configuration")
    assert found["whole"].max_batch == 16


def test_a_model_whose_backend_is_not_installed_is_not_ready(repository: Path) -> None:
    write(repository, "named", WHOLE.replace('"b"', '"onnxruntime"'))
    write(repository, "older", WHOLE.replace('backend: "b"', 'platform: "onnxruntime_onnx"'))
    write(repository, "brings", WHOLE.replace('"b"', '"own"'))
    (repository / "brings" / "1" / "libtriton_own.so").write_bytes(b"")
    write(repository, "python", WHOLE.replace('"b"', '"python"'))
    steps = (
        'ensemble_scheduling { step [ { model_name: "older" input_map { key: "X" value: "X" } output_map { '
    )
    chain = steps + 'key: "Y" value: "Y" } } ] }'
    write(repository, "chain", WHOLE.replace('backend: "b"', 'platform: "ensemble"') + chain)
    here = survey(repository, Completes(backends=frozenset({"python"})))
    states = {model: one.state.value for model, one in here.items()}
    assert states == {
        "brings": "ready",
        "chain": "not supported",
        "named": "not supported",
        "older": "not supported",
        "python": "ready",
    }
    assert all("no backend onnxruntime (it has: python)" in here[m].note for m in ("named", "older", "chain"))
    unknown = survey(repository, Completes())
    assert {one.state.value for one in unknown.values()} == {"ready"}


def test_a_repository_without_models_is_refused(repository: Path) -> None:
    with pytest.raises(InputError, match="has no model"):
        survey(repository, Completes())


def test_the_skeleton_is_a_spec_of_what_can_be_planned(tmp_path: Path) -> None:
    findings = (
        Finding("no", Readiness.READY),
        Finding("1", Readiness.NEEDS_INPUTS, "X: its dimensions are variable\nand more"),
        Finding("llm", Readiness.UNSUPPORTED, "schedules its requests itself"),
    )
    file = tmp_path / "spec.yaml"
    file.write_text(skeleton(findings, "models", "cpu"))
    spec, _ = read_spec(file)
    assert [(w.name, w.model, w.endpoint) for w in spec.workloads] == [("no", "no", "no"), ("1", "1", "1")]
    assert [gpu.type for gpu in spec.gpus] == ["cpu"]
    assert "# llm: not supported: schedules its requests itself" in file.read_text()
    assert "and more" not in file.read_text()
