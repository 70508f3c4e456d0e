from __future__ import annotations

import pytest

from controlplane.planning.replan.differences import TermChange
from controlplane.report.terms_line import terms_line

pytestmark = pytest.mark.unit


def test_an_apply_without_an_action_says_what_was_taken_over() -> None:
    assert terms_line(()) == "nothing to do"
    changed = (
        TermChange("a", "slo_ms", 2000.0, 1500.0),
        TermChange("a", "rate_rps", 100.0, 120.5),
        TermChange("b", "arrivals", "poisson", "constant"),
    )
    assert terms_line(changed) == (
        "nothing to do for the servers; changed: a: slo_ms 2000 -> 1500, rate_rps 100 -> 120.5; "
        "b: arrivals poisson -> constant"
    )
