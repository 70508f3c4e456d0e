"""`ctl plan`: options of strategies, and the proof."""

from pathlib import Path

import pytest
from told import Ctl

SPEC = """schema_version: 1
gpus:
  - type: v100
    price_per_hour: 3.06
workloads:
  - {name: a, model: alexnet, slo_ms: 15, rate_rps: 500}
  - {name: r, model: resnet50, slo_ms: 40, rate_rps: 400}
  - {name: v, model: vgg19, slo_ms: 60, rate_rps: 200}
"""


@pytest.fixture(autouse=True)
def directory(directory: Path) -> Path:
    (directory / "spec.yaml").write_text(SPEC)
    return directory


def test_a_proof_is_made_where_it_is_asked_for(ctl: Ctl) -> None:
    line = "plan spec.yaml --set rule=half-slo --json"
    found, proved = (ctl(line, option).document["totals"] for option in ("", "--prove"))
    assert (found["stopped_by"], proved["stopped_by"]) == ("converged", "optimal")
    assert found["lower_bound_gpus"] <= proved["lower_bound_gpus"] == proved["gpus"]


@pytest.mark.parametrize("option", ["--prove", "--set iterations=5", "--set inss.bda=paper"])
def test_an_option_of_another_strategy_is_refused(option: str, ctl: Ctl) -> None:
    assert "not for igniter" in ctl("plan spec.yaml --strategy igniter", option, code=2).err


def test_covers_are_demanded_of_all_shadows_and_priced(ctl: Ctl) -> None:
    plan = ctl("plan spec.yaml --json --set covers=1.5").document
    shadows = [partition["shadow"] for gpu in plan["gpus"] for partition in gpu["partitions"]]
    assert min(shadow["covers"] for shadow in shadows) >= 1.5
    assert plan["totals"]["gpus_for_demands"] >= 0
