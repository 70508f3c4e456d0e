import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.settings import InssSettings, PlanSettings
from controlplane.files.plans import read_spec
from controlplane.papers.inss.policy import read
from controlplane.runtime import SystemClock
from controlplane.runtime.jobs.plan import Choices, make_plan
from controlplane.runtime.jobs.train import Learnt, Lesson, train_policy

SPEC = """
schema_version: 1
gpus: [{type: rtx2060s, count: 1}, {type: rtx2060, count: 1}]
workloads:
  - {name: a, model: alexnet, slo_ms: 25, rate_rps: 200}
  - {name: m, model: mnasnet, slo_ms: 50, rate_rps: 200}
  - {name: v, model: vgg19, slo_ms: 200, rate_rps: 60}
"""


class Silent:
    def advance(self, what: str, done: int, total: int, seconds_left: float | None) -> None:
        pass


def learn(directory: Path, **changes: object) -> Learnt:
    spec = directory / "spec.yaml"
    spec.write_text(SPEC)
    lesson = replace(Lesson(spec, directory / "p.npz", None, 2, "goodput", 1), **changes)  # type: ignore[arg-type]
    return train_policy(lesson, profiles=directory, progress=Silent(), clock=SystemClock())


@pytest.mark.slow
def test_a_trained_policy_plans(tmp_path: Path) -> None:
    learnt = learn(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.csv", "p.npz", "spec.yaml"]
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["round"]) for row in rows] == [c["round"] for c in learnt.curve] == [2]
    about = read((tmp_path / "p.npz").read_bytes(), "p.npz")[1]
    spec, document = read_spec(tmp_path / "spec.yaml")
    assert about["spec_sha256"] == document.sha256
    choices = Choices("inss", PlanSettings(iterations=1, inss=InssSettings(policy=str(tmp_path / "p.npz"))))
    plan = make_plan(spec, document, choices, profiles=tmp_path, cores=1, clock=SystemClock()).plan
    assert "policy" in dict(plan.totals.phases_ms)
    assert plan.verified
    alone = Choices("inss", PlanSettings(iterations=1, inss=InssSettings(policy="none")))
    plan = make_plan(spec, document, alone, profiles=tmp_path, cores=1, clock=SystemClock()).plan
    assert "policy" not in dict(plan.totals.phases_ms)
    missing = Choices("inss", PlanSettings(inss=InssSettings(policy=str(tmp_path / "none.npz"))))
    with pytest.raises(InputError, match="ctl train"):
        make_plan(spec, document, missing, profiles=tmp_path, cores=1, clock=SystemClock())


def test_mistakes_are_named(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the extra rl is not installed")
    with pytest.raises(InputError, match=r"must end in \.npz"):
        learn(tmp_path, output=tmp_path / "p.json")
    with pytest.raises(InputError, match="did you mean 'paper'"):
        learn(tmp_path, reward="papr")
    open_ended = tmp_path / "open.yaml"
    open_ended.write_text(SPEC.replace("rtx2060, count: 1", "rtx2060"))
    with pytest.raises(InputError, match="fixed number of GPUs") as told:
        learn(tmp_path, spec=open_ended)
    assert told.value.line == 3
    open_ended.write_text(SPEC.replace("rtx2060s, count: 1", "cpu"))
    with pytest.raises(InputError, match="fixed number of cores"):
        learn(tmp_path, spec=open_ended)


@pytest.mark.parametrize("choice", [{"policy": "none"}, {"bda": "paper"}])
def test_a_policy_and_bda_are_for_inss_alone(tmp_path: Path, choice: dict[str, Any]) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    choices = Choices("joint", PlanSettings(inss=InssSettings(**choice)))
    with pytest.raises(InputError, match="inss alone"):
        make_plan(*read_spec(spec), choices, profiles=tmp_path, cores=1, clock=SystemClock())
