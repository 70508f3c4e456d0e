from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.domain.plan import Plan
from controlplane.files.specs import read_spec
from controlplane.runtime.clock import SystemClock
from controlplane.runtime.planning import Choices, make_plan, mean_execution_ms

pytestmark = pytest.mark.unit

SPEC = """
schema_version: 1
gpus: [{type: v100}]
workloads:
  - {name: search, model: resnet50, slo_ms: 40, rate_rps: 400}
  - {name: ads, model: alexnet, slo_ms: 20, rate_rps: 500}
"""


def planned(directory: Path, strategy: str) -> Plan:
    (directory / "spec.yaml").write_text(SPEC)
    spec, document = read_spec(directory / "spec.yaml")
    return make_plan(spec, document, Choices(strategy), profiles=directory, cores=1, clock=SystemClock())


def test_what_is_expected_is_the_mean_and_what_is_promised_leaves_room(tmp_path: Path) -> None:
    means, promised = planned(tmp_path, "igniter"), planned(tmp_path, "joint")
    for plan, least, most in ((means, 1.0, 1.0), (promised, 1.001, 2.0)):
        expected_ms = mean_execution_ms(plan, tmp_path)
        for _, partition, placement in plan.placements():
            told = placement.predicted.execution_ms
            assert told is not None
            assert least - 1e-6 <= told / expected_ms[partition.id] <= most + 1e-6
