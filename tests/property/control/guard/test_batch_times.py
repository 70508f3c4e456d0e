"""Properties of the test of batch times."""

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.control.guard import baseline, batch_times
from controlplane.control.guard.batch_times import NO_PART, BatchTimes, HostPart, Weighing
from controlplane.domain.observation import Answer

RATE_RPS = 50.0
TIMES = st.lists(st.floats(0.002, 0.1), min_size=1, max_size=60)


def alone(times_s: list[float], since_s: float, every_s: float = 1.0) -> list[Answer]:
    """Requests that meet an idle server."""
    return [Answer(since_s + every_s * i, 1e3 * took, False, "w", "s") for i, took in enumerate(times_s)]


def weigh(record: BatchTimes, answers: list[Answer], part: HostPart = NO_PART) -> BatchTimes:
    return looked(record, answers, part)[0]


def looked(
    record: BatchTimes, answers: list[Answer], part: HostPart = NO_PART
) -> tuple[BatchTimes, list[Answer]]:
    weighing = Weighing(batch_times.height(RATE_RPS), (0.01,), part)
    return batch_times.weigh(record, answers, answers[-1].ended_s + 1.0, weighing)


RECORD = weigh(BatchTimes(), alone([0.01 + 0.0001 * (i % 20) for i in range(400)], 0.0))


@settings(deadline=None)
@given(TIMES, st.data())
def test_evidence_is_monotone_in_the_time_of_a_batch(times_s: list[float], data: st.DataObject) -> None:
    slower = list(times_s)
    which = data.draw(st.integers(0, len(times_s) - 1))
    slower[which] += data.draw(st.floats(0.0, 1.0))
    # While the record stands still for both: from one state, batch by batch, before it is accepted as usual.
    held = weigh(RECORD, alone([0.1] * 16, 500.0))
    assert batch_times.strength(held, RATE_RPS) > batch_times.HOLD
    one = weigh(held, alone(times_s[: which + 1], 516.5, every_s=0.15))
    other = weigh(held, alone(slower[: which + 1], 516.5, every_s=0.15))
    assert other.chart.score >= one.chart.score - 1e-9


@settings(deadline=None)
@given(st.floats(0.2, 1e4))
def test_one_batch_however_long_is_no_alarm(took_s: float) -> None:
    stalled = weigh(RECORD, alone([took_s], 1e5))
    assert batch_times.strength(stalled, RATE_RPS) < 0.35


@settings(deadline=None)
@given(TIMES)
def test_evidence_never_leaves_its_range(times_s: list[float]) -> None:
    seen = weigh(RECORD, alone(times_s, 1000.0))
    assert 0.0 <= batch_times.strength(seen, RATE_RPS) <= 1.0
    assert all(threshold >= 0.0 for threshold in baseline.spread(seen.baseline))


@settings(deadline=None)
@given(TIMES, st.floats(0.2, 1e3))
def test_no_answer_counts_for_longer_than_it_took(times_s: list[float], stall_s: float) -> None:
    answers = alone([*times_s, stall_s], 1e5)
    _, counted = looked(RECORD, answers)
    assert all(a.latency_ms <= b.latency_ms for a, b in zip(counted, answers, strict=True))


@settings(deadline=None)
@given(st.floats(0.0, 0.9), st.integers(8, 60))
def test_a_delay_by_the_host_alone_is_no_evidence(starved: float, batches: int) -> None:
    own = 1.0 - starved
    delayed = alone([0.0109 / own] * batches, 1000.0)
    after = weigh(RECORD, delayed, HostPart(own))
    assert batch_times.strength(after, RATE_RPS) < batch_times.HOLD


@settings(deadline=None)
@given(st.floats(0.0, 0.9))
def test_a_doubled_time_is_certain_however_long_the_host_delays_it(starved: float) -> None:
    own = 1.0 - starved
    doubled = alone([0.022 / own] * 60, 1000.0, 0.4)
    after = weigh(RECORD, doubled, HostPart(own))
    assert batch_times.strength(after, RATE_RPS) == 1.0
