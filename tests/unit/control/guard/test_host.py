"""What counts as a contended host, and what is said of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.control.guard.host import STEAL, THROTTLED, WAITING, contention
from controlplane.domain.observation import HostSeen

pytestmark = pytest.mark.unit


def test_nothing_is_said_of_a_host_that_is_not_known_or_has_time() -> None:
    assert contention(None) == ""
    assert contention(HostSeen(waiting=0.2, steal=0.01, throttled=0.0)) == ""


def test_each_kind_of_evidence_is_named_with_its_figure() -> None:
    assert contention(HostSeen(0.75, 0.08, 0.3)) == (
        "the host is contended: the gateway waited for a core in 75% of the time it was ready to run, "
        "the hypervisor withheld 8% of the cores' time, "
        "the gateway's own cgroup was throttled for 30% of the time"
    )
    assert contention(HostSeen(0.1, 0.0, 0.3)) == (
        "the host is contended: the gateway's own cgroup was throttled for 30% of the time"
    )


PARTS = st.floats(0.0, 1.0)


@given(PARTS, PARTS, PARTS)
def test_any_one_kind_of_evidence_is_enough(waiting: float, steal: float, throttled: float) -> None:
    enough = waiting >= WAITING or steal >= STEAL or throttled >= THROTTLED
    assert bool(contention(HostSeen(waiting, steal, throttled))) is enough
