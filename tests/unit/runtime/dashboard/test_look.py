"""What a page shows of a fleet that its record measured."""

from __future__ import annotations

import pytest

from controlplane.domain.observation import BatchStatistics
from controlplane.runtime.dashboard.look import busy_of
from controlplane.runtime.fleet.history import Minute


def minute(partition: str, seconds: float, batches: dict[int, BatchStatistics] | None) -> Minute:
    return Minute(0.0, seconds, partition, "m", 50.0, 10, 0, 5.0, batches)


def test_the_measured_utilisation_is_the_time_of_executions_of_the_counted_time() -> None:
    whole_s = 10**9
    found = busy_of(
        [
            minute("one", 60.0, {1: BatchStatistics(9, whole_s, 28 * whole_s, whole_s)}),
            minute(
                "one",
                60.0,
                {2: BatchStatistics(9, 0, 30 * whole_s, 0), 4: BatchStatistics(9, 0, 36 * whole_s, 0)},
            ),
            minute("one", 60.0, None),
            minute("two", 60.0, None),
            minute("idle", 60.0, {}),
        ]
    )
    assert found == {("one", "m"): pytest.approx(0.8), ("idle", "m"): 0.0}
