"""Plans for a GPU that is in no catalogue, from its device file and profiles."""

import json
from pathlib import Path

import pytest
from told import Ctl

from controlplane.domain.device import MPS_GRID, Device, ShareKind
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.files.measurements.profiles import write_device, write_profile
from controlplane.files.plans import read_plan
from controlplane.runtime.jobs.plan import verify_plan

SPEC = """schema_version: 1
gpus: [{{type: t4, count: {count}}}]
workloads:
  - {{name: a, model: m, slo_ms: 100, rate_rps: 5, memory_mb: 9000, isolated: true, shadow: {{policy: none}}}}
  - {{name: b, model: m, slo_ms: 100, rate_rps: 5, memory_mb: 9000, isolated: true, shadow: {{policy: none}}}}
"""


@pytest.fixture(autouse=True)
def directory(directory: Path) -> Path:
    profiles = directory / "profiles"
    points = tuple(
        Measurement(percent, batch, (1.0 + batch) * 100.0 / percent)
        for percent in (10.0, 50.0, 100.0)
        for batch in (1, 4, 16)
    )
    write_profile(profiles, Profile("m", "t4", ShareKind.MPS_PERCENT, Environment(), points))
    write_device(profiles, Device("t4", ShareKind.MPS_PERCENT, MPS_GRID, 15360.0, hardware={"P": 70.0}))
    return directory


def test_a_plan_that_overfills_the_memory_is_refused(directory: Path, ctl: Ctl) -> None:
    (directory / "spec.yaml").write_text(SPEC.format(count=1))
    assert len(ctl("plan spec.yaml --json", code=3).document["infeasible"]) == 1

    (directory / "spec.yaml").write_text(SPEC.format(count=2))
    document = ctl("plan spec.yaml --json").document
    one, two = document["gpus"]
    assert [gpu["memory_mb"] for gpu in (one, two)] == [15360.0] * 2
    together = {**one, "memory_mb": None, "partitions": [*one["partitions"], *two["partitions"]]}
    (directory / "plan.json").write_text(json.dumps({**document, "gpus": [together]}))
    violations = verify_plan(read_plan(directory / "plan.json")[0], directory / "profiles")
    assert any(v.reason.startswith("needs 18000 MB and has 15360 MB: ") for v in violations)
    assert "needs 18000 MB" in ctl("apply plan.json --yes --fleet never", code=2).err


def test_measurements_at_other_points_are_compared_with_the_profiles(directory: Path, ctl: Ctl) -> None:
    """The profile of `m` follows its law exactly; its own point is no test of it."""
    law = "\n".join(f"m,{p},{b},{(1.0 + b) * 100.0 / p}" for p, b in ((10, 1), (20, 2), (30, 8), (80, 16)))
    (directory / "measured.csv").write_text(f"model,percent,batch,ms\n{law}\n")
    found = ctl("validate --measured measured.csv --json").document["latency_models"]["ours"]["overall"]
    assert (found["n"], found["coverage_95_percent"]) == (3, 100.0)
    assert found["mape_percent"] < 1.0
    (directory / "measured.csv").write_text("model,percent,batch,ms\nother,20,1,5\n")
    for wrong in ("", "--catalogue v100", "--profiles nowhere"):
        ctl("validate --measured measured.csv", wrong, code=2)
