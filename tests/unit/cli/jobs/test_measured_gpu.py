"""Plans for a GPU that is in no catalogue, from its device file and profiles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controlplane.cli.main import run
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


def test_a_plan_that_overfills_the_memory_is_refused(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "spec.yaml").write_text(SPEC.format(count=1))
    assert run(["plan", "spec.yaml", "--json"]) == 3
    assert len(json.loads(capsys.readouterr().out)["infeasible"]) == 1

    (directory / "spec.yaml").write_text(SPEC.format(count=2))
    assert run(["plan", "spec.yaml", "-o", "plan.json"]) == 0
    document = json.loads((directory / "plan.json").read_text())
    one, two = document["gpus"]
    assert [gpu["memory_mb"] for gpu in (one, two)] == [15360.0] * 2
    together = {**one, "memory_mb": None, "partitions": [*one["partitions"], *two["partitions"]]}
    (directory / "plan.json").write_text(json.dumps({**document, "gpus": [together]}))
    violations = verify_plan(read_plan(directory / "plan.json")[0], directory / "profiles")
    assert any(v.reason.startswith("needs 18000 MB and has 15360 MB: ") for v in violations)
    capsys.readouterr()
    assert run(["apply", "plan.json", "--yes", "--fleet", "never"]) == 2
    assert "needs 18000 MB" in capsys.readouterr().err


def test_measurements_at_other_points_are_compared_with_the_profiles(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The profile of `m` follows its law exactly; its own point is no test of it."""
    law = "\n".join(f"m,{p},{b},{(1.0 + b) * 100.0 / p}" for p, b in ((10, 1), (20, 2), (30, 8), (80, 16)))
    (directory / "measured.csv").write_text(f"model,percent,batch,ms\n{law}\n")
    assert run(["validate", "--measured", "measured.csv", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["latency_models"]["ours"]["overall"]
    assert (found["n"], found["coverage_95_percent"]) == (3, 100.0)
    assert found["mape_percent"] < 1.0
    (directory / "measured.csv").write_text("model,percent,batch,ms\nother,20,1,5\n")
    assert run(["validate", "--measured", "measured.csv"]) == 2
    assert run(["validate", "--measured", "measured.csv", "--catalogue", "v100"]) == 2
    assert run(["validate", "--measured", "measured.csv", "--profiles", "nowhere"]) == 2
