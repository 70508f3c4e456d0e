"""What must always hold of the state of load control; tests check it after every tick."""

import math

import numpy as np

from controlplane.control.autoscaler.state import PEAKS, Direction, LoadState


def validate_state(state: LoadState) -> None:
    """Raise AssertionError where the state breaks what must always hold; tests call it after every tick."""
    count = len(state.workloads)
    for rates in (state.seconds, state.minutes):
        assert rates.counts.shape[0] == rates.stretch.size == rates.dispersion.size == count
        assert (rates.dispersion >= 1.0).all()
        assert not (rates.counts < 0.0).any()
    assert state.days.rates.shape[1] == state.days.requests.size == state.days.seconds.size == count
    assert all(len(part) == count for part in (*state.peaks_rps, *state.minute, state.unheld_rps))
    assert len(state.peaks_rps) <= PEAKS
    assert not state.applying or state.under_way is not None
    if state.under_way is not None and state.under_way.direction is Direction.UP:
        wanted = zip(state.under_way.rates_rps, state.planned_rps, strict=True)
        assert all(rate >= planned - 1e-9 for rate, planned in wanted), "an increase takes from no workload"
    assert math.isfinite(state.changed_s)
    assert np.isfinite(state.unheld_rps).all()
