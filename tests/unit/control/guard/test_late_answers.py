"""Late answers are an alarm when the evidence is enough, and not before, however arrivals are dispersed."""

import math
import random
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.control.guard import late_answers
from controlplane.control.guard.late_answers import ClusterSizes
from controlplane.control.guard.promise import LARGEST_SCALE, UNPREDICTED_SCALE, Promise
from controlplane.domain.observation import Answer

FAST = Promise("w", slo_ms=10.0, rate_rps=1000.0)
SLOW = Promise("w", slo_ms=100.0, rate_rps=5.0)


def answers(promise: Promise, above: list[bool]) -> list[Answer]:
    gap = 1.0 / promise.rate_rps
    return [
        Answer(i * gap, promise.slo_ms * (2.0 if x else 0.5), False, promise.endpoint, "s")
        for i, x in enumerate(above)
    ]


def alarm_at(promise: Promise, above: list[bool]) -> int | None:
    """The number of requests after which the alarm comes, read one at a time."""
    evidence = late_answers.begin(promise)
    for i, answer in enumerate(answers(promise, above)):
        evidence, broken = late_answers.weigh(evidence, promise, [answer])
        if broken:
            return i + 1
    return None


def test_a_collapse_is_seen_within_tens_of_requests_above() -> None:
    at_fast = alarm_at(FAST, [True] * 500)
    at_slow = alarm_at(SLOW, [True] * 500)
    assert at_fast is not None
    assert at_slow is not None
    assert at_fast <= 100  # a tenth of a second
    assert 5 <= at_slow <= 15  # one bad second of five requests cannot be enough
    assert at_slow < at_fast  # fewer of them share one busy period


def test_one_in_a_hundred_is_no_violation() -> None:
    draw = random.Random(1)
    assert alarm_at(FAST, [draw.random() < 0.01 for _ in range(200_000)]) is None


def test_five_in_a_hundred_is_one() -> None:
    draw = random.Random(2)
    at = alarm_at(FAST, [draw.random() < 0.05 for _ in range(20_000)])
    assert at is not None
    assert at > 500


def test_failed_requests_say_nothing_about_speed() -> None:
    evidence = late_answers.begin(SLOW)
    failed = [Answer(i * 0.2, 1e6, True, "w", "s") for i in range(50)]
    assert late_answers.weigh(evidence, SLOW, failed) == (evidence, False)


def test_clusters_are_learned_and_raise_the_height() -> None:
    # One cluster of 30 in 4,000: 0.75 % above, all neighbours.
    evidence = late_answers.begin(SLOW)
    for _ in range(20):
        evidence, broken = late_answers.weigh(evidence, SLOW, answers(SLOW, [True] * 3 + [False] * 397))
        assert not broken
        evidence = late_answers.restart(evidence)
    before = late_answers.scale(evidence, SLOW)
    assert before > late_answers.scale(late_answers.begin(SLOW), SLOW)
    assert late_answers.scale(evidence, SLOW) <= LARGEST_SCALE * SLOW.natural_scale


def test_late_answers_within_an_slo_of_each_other_are_one_cluster() -> None:
    at_s = (0.0, 10.0, 10.05, 10.08, 10.2)
    above = (False, True, False, True, False)
    alarm = late_answers.alarm_of(late_answers.begin(SLOW), SLOW)
    after, raised = late_answers.scan(late_answers.begin(SLOW), at_s, above, alarm)
    assert (after.ended.clusters, after.ended.late, raised) == (1.0, 2.0, -1)


def test_a_violation_does_not_raise_the_height_of_its_own_alarm() -> None:
    """Clusters of three, each followed by a calm: a tenth of the requests are late."""
    fresh = late_answers.begin(SLOW)
    cluster = answers(SLOW, [True] * 3 + [False] * 27)
    evidence, heights = fresh, set()
    for i in range(40):
        shifted = [a._replace(ended_s=a.ended_s + 6.0 * i) for a in cluster]
        evidence, broken = late_answers.weigh(evidence, SLOW, shifted)
        heights.add(late_answers.scale(evidence, SLOW))
        if broken:
            break
    assert broken
    assert heights == {late_answers.scale(fresh, SLOW)}


@pytest.mark.parametrize(("utilisation", "most"), [(None, UNPREDICTED_SCALE), (0.5, LARGEST_SCALE)])
def test_what_is_always_slow_cannot_teach_that_slow_is_normal(utilisation: float | None, most: float) -> None:
    evidence, promise = late_answers.begin(SLOW), replace(SLOW, utilisation=utilisation)
    evidence = evidence._replace(sizes=ClusterSizes(1e6, 1e12))
    assert late_answers.scale(evidence, promise) == most * promise.natural_scale


def test_strength_reaches_one_at_the_alarm() -> None:
    evidence = late_answers.begin(FAST)
    last = 0.0
    for answer in answers(FAST, [True] * 500):
        evidence, broken = late_answers.weigh(evidence, FAST, [answer])
        now = late_answers.strength(evidence, FAST)
        assert now > last
        last = now
        if broken:
            break
    assert last >= 1.0
    assert late_answers.strength(late_answers.restart(evidence), FAST) == 0.0


def test_looks_of_any_size_weigh_as_one_scan_does() -> None:
    draw = random.Random(3)
    # Quiet stretches, which `weigh` passes over, between clusters and lone requests above the SLO.
    above = [draw.random() < (0.2 if i // 500 % 3 == 1 else 0.001) for i in range(6000)]
    every = answers(FAST, above)
    evidence = late_answers.begin(FAST)
    scanned, read = evidence, 0
    while read < len(every):
        look = every[read : read + draw.randrange(40)]
        evidence, broken = late_answers.weigh(evidence, FAST, look)
        scanned, at = late_answers.scan(
            scanned,
            [a.ended_s for a in look],
            [a.latency_ms > FAST.slo_ms for a in look],
            late_answers.alarm_of(scanned, FAST),
        )
        assert broken == (at >= 0)
        assert evidence == scanned
        if broken:
            evidence = scanned = late_answers.restart(evidence)
        read += len(look)


def test_clusters_of_a_planned_queue_are_those_of_its_utilisation() -> None:
    """Against a run of 400,000 requests of a queue with constant service times."""
    for load in (0.5, 0.75, 0.85):
        promise = replace(FAST, utilisation=load)
        sizes = clusters_above_p99(load, 400_000)
        seen = sum(n * n for n in sizes) / sum(sizes)
        assert promise.natural_scale / 2.0 < seen < 2.0 * promise.natural_scale


def clusters_above_p99(load: float, requests: int) -> list[int]:
    """The sizes of the clusters above the P99 of a queue that takes one second for a request."""
    draw = random.Random(1)
    due = free = 0.0
    ends = []
    for _ in range(requests):
        due += draw.expovariate(load)
        free = max(due, free) + 1.0
        ends.append((free, free - due))
    p99 = sorted(took for _, took in ends)[int(0.99 * requests)]
    sizes, last = [], -math.inf
    for end, took in ends:
        if took > p99:
            if end - last > p99:
                sizes.append(0)
            sizes[-1] += 1
            last = end
    return sizes


RATE_RPS = 20.0
PROMISE = Promise("w", 500.0, RATE_RPS, utilisation=0.5)


def seen(due_s: list[float]) -> float:
    found = late_answers.scan_arrivals(late_answers.Arrivals(), due_s, late_answers.window_s(RATE_RPS, 0.5))
    return late_answers.dispersion(found)


def clumped(arrived: int, size: int, seed: int = 1) -> list[float]:
    """Clumps of one size at Poisson times: their dispersion is their size."""
    chance = random.Random(seed)
    at = accumulate(chance.expovariate(RATE_RPS / size) for _ in range(arrived // size))
    return [second for second in at for _ in range(size)]


def test_clumps_are_known_by_their_size() -> None:
    assert seen(clumped(20_000, 1)) < 1.15
    assert seen(clumped(20_000, 4)) == pytest.approx(4.0, rel=0.15)


def test_a_rate_that_rises_over_minutes_is_no_dispersion() -> None:
    chance, due, at = random.Random(1), [], 0.0
    while at < 1000.0:
        at += chance.expovariate(RATE_RPS * (1.0 + at / 500.0))
        due.append(at)
    assert seen(due) < 1.3


def test_a_pause_is_no_dispersion() -> None:
    due = clumped(2000, 1)
    assert seen([*due, *(due[-1] + 500.0 + at for at in due)]) < 1.4


def test_few_arrivals_say_little() -> None:
    assert seen([]) == 1.0
    assert seen(clumped(40, 4)) < 2.0


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 100.0), max_size=300).map(sorted))
def test_dispersion_stays_in_its_range(due_s: list[float]) -> None:
    assert 1.0 <= seen(due_s) <= late_answers.LARGEST_DISPERSION


def test_clumps_of_late_answers_are_no_slow_server() -> None:
    """Sixty late answers in a row break no promise where arrivals come in fours, and do where they do not."""
    broken = {}
    for size in (1, 4):
        due = clumped(8000, size)
        usual = [Answer(at + 0.02, 20.0, False, "w", "s") for at in due]
        late = [Answer(due[-1] + 1.0 + 0.02 * i, 600.0, False, "w", "s") for i in range(60)]
        evidence = late_answers.count(late_answers.begin(PROMISE), PROMISE, usual)
        _, broken[size] = late_answers.weigh(evidence, PROMISE, late)
    assert broken == {1: True, 4: False}
