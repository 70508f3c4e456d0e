"""Partitions with several models in the simulator."""

from __future__ import annotations

import pytest
from turing import device, planned

from controlplane.domain.errors import InputError
from controlplane.simulate.engine import simulate

pytestmark = pytest.mark.unit


def test_models_that_take_turns_are_not_simulated_as_if_side_by_side() -> None:
    plan = planned("sbp", {"densenet161": 50.0, "vgg16": 50.0}, count=1)
    assert any(p.turns for _, p in plan.partitions())
    with pytest.raises(InputError, match="one at a time"):
        simulate(plan, {"rtx2080ti": device(1).latency})
