from __future__ import annotations

import pytest

from controlplane.latency import design

pytestmark = pytest.mark.unit

SHARES = (20.0, 40.0, 50.0, 60.0, 80.0)


def test_every_rule_takes_eleven_points_and_the_ends_of_both_axes() -> None:
    for rule in design.rules():
        points = rule.points(SHARES, 32)
        assert len(points) == design.POINTS
        assert {p for p, _ in points} == set(SHARES)
        assert {b for _, b in points} == {rule.low, rule.middle, rule.high}


def test_a_small_model_is_measured_within_its_batches() -> None:
    assert max(b for _, b in design.DEFAULT.points(SHARES, 8)) == 8
    assert {b for _, b in design.DEFAULT.points(SHARES, 1)} == {1}


def test_the_rule_with_the_smallest_worst_error_is_chosen() -> None:
    wanted = design.Rule("belt", 2, 8, 16)
    errors = {"a": 1.0, "b": 2.0}
    chosen = design.choose(lambda rule, model: errors[model] if rule == wanted else 3.0, ["a", "b"])
    assert chosen == wanted


def test_shares_are_five() -> None:
    with pytest.raises(ValueError, match="5 shares, not 2"):
        design.DEFAULT.points((20.0, 50.0), 32)
