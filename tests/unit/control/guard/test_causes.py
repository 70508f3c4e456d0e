"""What counts as a contended host, and what is said of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.control.guard.batch_times import NO_PART
from controlplane.control.guard.rule import (
    LEAST_UNEXPLAINED,
    STEAL,
    THROTTLED,
    WAITING,
    contention,
    host_part,
    starves,
)
from controlplane.domain.fleet import Delays
from controlplane.domain.observation import Health, HostSeen, ServerSeen


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


@given(PARTS, PARTS, PARTS)
def test_the_host_explains_what_other_work_and_other_machines_take(
    starved: float, throttled: float, steal: float
) -> None:
    server = ServerSeen(Health.READY, delays=Delays(starved, throttled))
    part = host_part(HostSeen(0.0, steal, wait_s=0.002), server, 40.0)
    assert part.own == pytest.approx(max(LEAST_UNEXPLAINED, (1.0 - starved) * (1.0 - steal)))
    assert part.wait_s == 0.002
    assert host_part(HostSeen(1.0, steal), ServerSeen(Health.READY), 40.0) == NO_PART


def test_a_host_that_explains_a_fifth_starves_and_one_with_time_does_not() -> None:
    contended = HostSeen(waiting=0.9)
    assert starves(contended, 0.6)
    assert not starves(contended, 0.9)
    assert not starves(HostSeen(waiting=0.1), 0.6)


def test_a_server_at_its_quota_is_not_starved() -> None:
    at_its_quota = ServerSeen(Health.READY, delays=Delays(0.1, 0.6))
    assert not starves(HostSeen(waiting=0.9), host_part(HostSeen(waiting=0.9), at_its_quota, 40.0).own)


@pytest.mark.parametrize(
    ("delays", "cut"),
    [
        (Delays(0.0, 0.5), False),
        (Delays(0.0, 0.6), False),
        (Delays(0.0, 0.9), True),
        (Delays(0.5, 0.25), False),
        (Delays(0.5, 0.45), True),
        (Delays(0.9, 0.0), False),
        (Delays(1.0, 0.0), False),
    ],
)
def test_a_server_that_is_throttled_for_far_more_than_its_share_has_lost_its_quota(
    delays: Delays, cut: bool
) -> None:
    """Whatever other work takes of its time."""
    assert host_part(None, ServerSeen(Health.READY, delays=delays), 50.0).cut is cut
