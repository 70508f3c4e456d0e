from __future__ import annotations

import pytest

from controlplane.gateway.supervise import back_off_s

pytestmark = pytest.mark.unit


def test_a_first_death_costs_no_wait_and_repeated_ones_ever_more() -> None:
    assert [back_off_s(deaths) for deaths in range(1, 6)] == [0.0, 0.05, 0.1, 0.2, 0.4]
    assert back_off_s(10**6) == 5.0
