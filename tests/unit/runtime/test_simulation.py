"""What `ctl simulate` takes and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.runtime.simulation import run

pytestmark = pytest.mark.unit


def test_more_requests_than_anybody_waits_for_are_refused_at_once(tmp_path: Path) -> None:
    partition = Partition("P", 50.0, (ServedModel("ssd", 4),), (Placement("W1", "W1", "ssd", 50.0, 100.0),))
    plan = Plan("by-hand", Rule.P99, "ours", (PlannedGpu("v100-0", "v100", (partition,)),))
    with pytest.raises(InputError, match=r"--seconds: 5e\+09 requests .* shorter time"):
        run(plan, profiles=tmp_path, truth=None, arrivals=[], seconds=1e8, seed=1)
    assert (
        run(plan, profiles=tmp_path, truth=None, arrivals=[], seconds=2.0, seed=1).workloads[0].requests > 50
    )
