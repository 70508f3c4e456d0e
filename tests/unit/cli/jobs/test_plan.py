"""`ctl plan`: options of strategies, and the proof."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controlplane.cli.main import app
from controlplane.domain.errors import InputError

SPEC = """schema_version: 1
gpus:
  - type: v100
    price_per_hour: 3.06
workloads:
  - {name: a, model: alexnet, slo_ms: 15, rate_rps: 500}
  - {name: r, model: resnet50, slo_ms: 40, rate_rps: 400}
  - {name: v, model: vgg19, slo_ms: 60, rate_rps: 200}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


def test_a_proof_is_made_where_it_is_asked_for(spec: Path) -> None:
    totals = {}
    for options in ((), ("--prove",)):
        result = CliRunner().invoke(app, ["plan", str(spec), "--set", "rule=half-slo", "--json", *options])
        assert result.exit_code == 0, result.output
        totals[options] = json.loads(result.stdout)["totals"]
    assert totals["--prove",]["stopped_by"] == "optimal"
    assert totals[()]["stopped_by"] == "converged"
    assert totals[()]["lower_bound_gpus"] <= totals["--prove",]["lower_bound_gpus"]
    assert totals["--prove",]["lower_bound_gpus"] == totals["--prove",]["gpus"]


@pytest.mark.parametrize("option", [("--prove",), ("--set", "iterations=5"), ("--set", "inss.bda=paper")])
def test_an_option_of_another_strategy_is_refused(spec: Path, option: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["plan", str(spec), "--strategy", "igniter", *option])
    assert isinstance(result.exception, InputError)
    assert "not for igniter" in str(result.exception)


def test_covers_are_demanded_of_all_shadows_and_priced(spec: Path) -> None:
    result = CliRunner().invoke(app, ["plan", str(spec), "--json", "--set", "covers=1.5"])
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    shadows = [partition["shadow"] for gpu in plan["gpus"] for partition in gpu["partitions"]]
    assert min(shadow["covers"] for shadow in shadows) >= 1.5
    assert plan["totals"]["gpus_for_demands"] >= 0
