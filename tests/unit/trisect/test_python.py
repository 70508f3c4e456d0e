"""`import trisect`: what docs/python.md, the package's docstring and the example promise."""

import doctest
import json
import re
import runpy
from pathlib import Path

import pytest

import trisect

ROOT = Path(__file__).parents[3]
CONTENT = {
    "schema_version": 1,
    "gpus": [{"type": "v100"}],
    "workloads": [
        {"name": "search", "model": "resnet50", "slo_ms": 40, "rate_rps": 400},
        {"name": "ads", "model": "alexnet", "slo_ms": 15, "rate_rps": 500},
    ],
}


def test_the_docstring_shows_what_happens() -> None:
    assert doctest.testmod(trisect).failed == 0


def test_the_page_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert len(trisect.Plan.read("plan.json").gpus) == 7


@pytest.mark.slow
def test_the_example_shows_that_looser_objectives_cost_less(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "examples" / "slo_against_cost.py"
    runpy.run_path(str(path))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    costs = [float(row[3]) for row in rows]
    assert len(costs) == 5
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > costs[-1]
    assert len(path.read_text().splitlines()) < 20


def test_a_plan_survives_its_file_and_breaks_in_simulation_where_it_ignores_queues(tmp_path: Path) -> None:
    plan = trisect.plan(trisect.Spec.of(CONTENT), strategy="igniter")
    plan.write(tmp_path / "plan.json")
    again = trisect.Plan.read(tmp_path / "plan.json")
    assert again.to_json() == plan.to_json()
    assert json.loads(plan.to_json())["schema_version"] == 1
    assert trisect.verify(again) == plan.violations
    assert plan.rule == trisect.Rule.HALF_SLO
    assert trisect.simulate(plan, seconds=5).breaks == 2


def test_a_spec_read_from_a_file_equals_one_of_values(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(CONTENT))
    read, made = trisect.Spec.read(tmp_path / "spec.json"), trisect.Spec.of(CONTENT)
    assert (read.gpus, read.workloads) == (made.gpus, made.workloads)


def test_changes_make_another_spec() -> None:
    spec = trisect.Spec.of(CONTENT)
    assert [w.slo_ms for w in spec.scaled(slo=2).workloads] == [80, 30]
    assert [w.rate_rps for w in spec.scaled(rate=0.5).workloads] == [200, 250]
    assert [w.slo_ms for w in spec.changed("ads", slo_ms=20).workloads] == [40, 20]
    assert [w.slo_ms for w in spec.workloads] == [40, 15], "the first is unchanged"


@pytest.mark.parametrize(
    ("workload", "change", "problem"),
    [
        ("ads", {"slo_ms": -1}, r"<spec>:\d+: workloads\[1\]\.slo_ms"),
        ("ads", {"slo": 1}, r"unknown key; did you mean 'slo_ms'"),
        ("adds", {"slo_ms": 1}, "did you mean 'ads'"),
    ],
)
def test_mistakes_name_their_line_and_field(workload: str, change: dict[str, float], problem: str) -> None:
    with pytest.raises(trisect.InputError, match=problem):
        trisect.Spec.of(CONTENT).changed(workload, **change)


def test_all_names_are_there_and_described() -> None:
    for name in trisect.__all__:
        assert getattr(trisect, name).__doc__, name
