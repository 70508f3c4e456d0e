"""A verdict comes in bounded time where too many answers are late and the host explains none of it."""

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from quota_server import Case, Outcome, outcome

from controlplane.control.guard import late_answers
from controlplane.control.guard.late_answers import ClusterSizes
from controlplane.control.guard.promise import Promise
from controlplane.domain.observation import Answer

PROMISE = Promise("w", 50.0, 100.0, utilisation=0.6)
PATTERNS = st.lists(st.booleans(), min_size=20, max_size=100).filter(lambda p: sum(p) >= 0.1 * len(p))
SCALES = st.floats(1.0, 100.0)


@settings(deadline=None)
@given(PATTERNS, SCALES)
def test_a_share_of_late_answers_is_an_alarm_after_so_many_answers(
    pattern: list[bool], learned: float
) -> None:
    """Whatever their order, and whatever was learned before."""
    evidence = late_answers.LateAnswers((0.0, 0.0, 0.0, 0.0), ClusterSizes(1.0, learned))
    share = sum(pattern) / len(pattern)
    height = PROMISE.rarity * late_answers.scale(evidence, PROMISE) / (1.0 - late_answers.EXCESS / 0.05)
    bound = (height + len(pattern)) / (share - 0.05) + len(pattern)
    heard, now_s = 0, 0.0
    while heard <= bound:
        answers = []
        for late in pattern:
            now_s += 0.01
            answers.append(Answer(now_s, 80.0 if late else 20.0, False, "w", "s"))
        evidence, broken = late_answers.weigh(evidence, PROMISE, answers)
        heard += len(pattern)
        if broken:
            return
    raise AssertionError(f"no alarm after {heard} answers, {share:.0%} of them late")


SHARE, FOR_S, WITHIN_S = 0.2, 4.0, 4.0


def excess_s(case: Case, seen: Outcome) -> float:
    """When more than SHARE of the answers of FOR_S since the cut were late for the first time."""
    after = [(end, 1000.0 * (end - due) > case.slo_ms) for end, due in seen.answers if end >= case.cut_s]
    first = late = 0
    for last, (end, is_late) in enumerate(after):
        late += is_late
        while after[first][0] < end - FOR_S:
            late -= after[first][1]
            first += 1
        if end - case.cut_s >= FOR_S and late > SHARE * (last - first + 1):
            return end
    return math.inf


@settings(deadline=None, max_examples=25)
@given(
    st.builds(
        Case,
        st.integers(0, 10**6),
        st.floats(1.5, 4.0),
        st.floats(1.0, 1.5),
        st.tuples(st.floats(0.0, 0.1), st.just(0.05)),
        st.floats(0.0, 1.0),
    )
)
# Thresholds and cluster sizes were learned from the violation itself: hundreds late, no verdict.
@example(Case(11, clump=1.5, starved=(0.05, 0.05)))
@example(Case(38, starved=(0.05, 0.05)))
@example(Case(3, clump=2.0, starved=(0.05, 0.05)))
def test_a_server_at_a_cut_quota_is_left_in_bounded_time_however_contended_the_host_looks(case: Case) -> None:
    seen = outcome(case)
    assert seen.redirected_s <= excess_s(case, seen) + WITHIN_S


# A light load at 30 % of a core: most batches have one request and the quota of a period.
LIGHT = Case(
    0,
    slowdown=3.5,
    starved=(0.05, 0.05),
    waiting=0.6,
    rate_rps=48.0,
    slo_ms=200.0,
    quota=0.3,
    work_s=0.0022,
    batch=3,
    utilisation=0.45,
    cut_s=5.0,
    until_s=17.0,
)


def test_a_light_server_is_left_about_as_fast_as_a_busy_one() -> None:
    """A slowdown averaged since the charts left zero took up to 2.6 s."""
    left_s = [outcome(replace(LIGHT, seed=seed)).redirected_s - LIGHT.cut_s for seed in range(20)]
    assert min(left_s) >= 0.0
    assert max(left_s) <= 1.0


# Cut from half a core to a tenth of it after some forty answers: there is no record of its batches yet.
YOUNG = Case(
    0, 6.9, waiting=0.6, rate_rps=40.0, slo_ms=1000.0, work_s=0.0034, cut_s=1.0, until_s=31.0, utilisation=0.3
)


def test_a_young_server_that_lost_its_quota_is_left_though_its_batches_seem_to_stall() -> None:
    left_s = [outcome(replace(YOUNG, seed=seed)).redirected_s - YOUNG.cut_s for seed in range(10)]
    assert max(left_s) <= 4.0


@pytest.mark.parametrize("seed", range(5))
def test_a_server_whose_quota_is_not_cut_is_left_alone(seed: int) -> None:
    assert outcome(Case(seed, slowdown=1.0)).redirected_s == math.inf


@settings(deadline=None, max_examples=25)
@given(
    st.builds(
        Case,
        st.integers(0, 10**6),
        slowdown=st.just(1.0),
        slo_ms=st.floats(40.0, 200.0),
        starved_then=st.tuples(st.floats(0.0, 0.8), st.floats(0.0, 0.2)),
        waiting_then=st.just(0.85),
        gateway_s=st.floats(0.0, 0.02),
    )
)
# Batches seemed four times as long where the gateway waited, and the reading before was of a quiet host.
@example(Case(0, 1.0, slo_ms=100.0, starved_then=(0.0, 0.1), waiting_then=0.85, gateway_s=0.01))
@example(Case(0, 1.0, slo_ms=100.0, starved_then=(0.7, 0.1), waiting_then=0.85))
def test_a_server_is_never_left_for_time_that_is_all_the_hosts(case: Case) -> None:
    assert outcome(case).redirected_s == math.inf


@pytest.mark.parametrize("traffic", [1.2, 1.5, 2.0])
def test_more_traffic_than_planned_moves_none_of_it(traffic: float) -> None:
    """At twice the planned rate nine of ten answers are late."""
    for seed in range(5):
        case = Case(seed, slowdown=1.0, traffic=traffic, starved=(0.05, 0.05))
        assert outcome(case).redirected_s == math.inf
