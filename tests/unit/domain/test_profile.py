"""What a profile says of memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.device import ShareKind
from controlplane.domain.profile import Profile


def law(by_batch: dict[int, float], memory_mb: float | None = 700.0) -> tuple[float, float] | None:
    made = Profile("m", "v100", ShareKind.MPS_PERCENT, memory_mb=memory_mb, memory_by_batch=by_batch)
    return made.memory_law


def test_two_batches_make_a_line_and_one_counts_for_all() -> None:
    assert law({1: 500.0, 5: 700.0}) == (450.0, 50.0)
    assert law({5: 700.0}) == (700.0, 0.0)
    assert law({}, None) is None


@given(st.dictionaries(st.integers(1, 64), st.floats(1.0, 1e5), min_size=2))
def test_no_measurement_is_above_the_line_and_it_never_falls(by_batch: dict[int, float]) -> None:
    found = law(by_batch)
    assert found is not None
    fixed, each = found
    assert each >= 0.0
    assert all(mb <= (fixed + each * batch) * (1.0 + 1e-9) for batch, mb in by_batch.items())
