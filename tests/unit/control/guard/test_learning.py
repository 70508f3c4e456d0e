"""When a slow server says something of its model, and what follows for the model's other partitions."""

from dataclasses import replace

import pytest
from guard_bench import bench, of, partition, targets

from controlplane.control.guard import batch_times, decide, learning, queues
from controlplane.control.guard.batch_times import BatchTimes, BesidePlan, Chart
from controlplane.control.guard.effects import Learn
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.state import GuardedPartition, Limits, PlacedServer, Slower, Watch
from controlplane.domain.workload import ShadowPolicy

PROMISE = Promise(
    "w", 50.0, 200.0, batch=4, p99_ms=45.0, batch_ms=(8.0, 10.0, 12.0, 14.0), model="m", utilisation=0.7
)


def took(factor: float, *, sudden: bool = False) -> BatchTimes:
    """Sixty blocks of `factor` times the planned time; `sudden`: at first they took the planned one."""
    chart = Chart(batch_times.height(PROMISE.rate_rps) if sudden else 0.0)
    taken = BesidePlan(0.0, 0.0, 0.0, factor, 1.0, 60.0, 60.0 * factor, 60.0 * factor * factor)
    return BatchTimes(chart=chart, queued=taken)


def serving(name: str, batches: BatchTimes, *, gpu_type: str = "v100", percent: float = 40.0) -> Watch:
    """A partition whose planned share is 40 %."""
    partition = GuardedPartition(
        name, f"{gpu_type}-0", 40.0, (PROMISE,), ShadowPolicy.HOT, "g", 10.0, gpu_type, covers=1.1
    )
    placed = {name: (PlacedServer(f"{name}.a", partition.gpu, percent),)}
    watch = decide.begin((partition,), placed, Limits()).watches[name]
    watch = replace(watch, queues=(queues.begin(PROMISE)._replace(batches=batches),))
    return replace(watch, slower=learning.slower(watch, 100.0))


def left(at_s: float) -> Watch:
    """One that was redirected then."""
    return replace(serving("b", BatchTimes()), slower=Slower(at_s, "m", 1.2, always=False))


@pytest.mark.parametrize(
    ("sudden", "others", "factor"),
    [
        (True, [serving("b", took(1.3, sudden=True))], 1.25),
        (False, [serving("b", took(1.3))], 1.25),
        (True, [left(95.0)], 1.2),
        (True, [left(20.0)], None),
        # It became slow alone.
        (True, [], None),
        (True, [serving("b", took(1.0))], None),
        # It was so from its first batch on: a wrong profile, or a bad device.
        (False, [], 1.2),
        (False, [serving("b", took(1.0))], None),
        (False, [serving("b", took(1.0), percent=60.0)], 1.2),  # faster by its larger share
        (False, [serving("b", took(1.0), gpu_type="t4")], 1.2),
        (False, [serving("b", BatchTimes())], 1.2),
    ],
)
def test_a_slow_server_shows_a_slow_model_where_others_are_slow_too_or_none_is_as_planned(
    sudden: bool, others: list[Watch], factor: float | None
) -> None:
    slow = serving("a", took(1.2, sudden=sudden))
    found = learning.model_error(slow, (slow, *others), {})
    assert (found and found.factor) == (factor and pytest.approx(factor))


def test_the_same_error_is_learned_once_and_a_larger_one_again() -> None:
    slow = serving("a", took(1.2))
    for known, news in ((1.2, False), (1.16, False), (1.05, True)):
        assert (learning.model_error(slow, (slow,), {("m", "v100"): known}) is not None) == news


def test_only_what_an_error_breaks_moves_and_what_no_shadow_covers_is_named() -> None:
    calm, tight = serving("a", took(1.0)), serving("b", took(1.0))
    strict = replace(PROMISE, p99_ms=49.0)
    tight = replace(tight, queues=(tight.queues[0]._replace(promise=strict),))
    small, large, other = (Learn(name, "v100", f) for name, f in (("m", 1.04), ("m", 1.5), ("n", 1.5)))
    assert [learning.overrun(watch, small) > 1.0 for watch in (calm, tight)] == [False, True]
    assert [learning.overrun(watch, large) > 1.0 for watch in (calm, tight)] == [True, True]
    assert learning.overrun(tight, other) == 0.0
    partitions = [watch.partition for watch in (calm, tight)]
    assert learning.uncovered(partitions, large) == ("a", "b")
    assert learning.uncovered(partitions, small) == learning.uncovered(partitions, other) == ()


def test_a_models_partitions_move_together() -> None:
    """Of several instances the log shows no batch times: what one partition is given here stays as it is."""
    promised = {"rate": 200.0, "batch": 4, "p99_ms": 45.0, "batch_ms": PROMISE.batch_ms, "model": "m"}
    b = bench(*(partition(name, 30.0, instances=2, **promised) for name in ("W1", "W2")))
    slow = b.state.watches["W1"]
    slow = replace(slow, queues=(slow.queues[0]._replace(batches=took(1.3)),))
    b.state = replace(b.state, watches={**b.state.watches, "W1": slow})
    while not b.moved():
        effects = b.tick(rate=200.0)
    assert [one.model for one in of(Learn, effects)] == ["m"]
    assert targets(effects) == ["W1.s", "W2.s"]
