"""The guard in the loop: the controller's decisions about a simulated fleet."""

from dataclasses import replace

import numpy as np
import pytest
from known_service import KnownService

from controlplane.control.guard.state import STEP_PERCENT
from controlplane.domain.errors import InputError
from controlplane.domain.plan import Partition, Plan, Prediction, ServedModel, Shadow, SharedShadow
from controlplane.domain.workload import ShadowPolicy
from controlplane.simulate.closed_loop.faults import Fault, Kind, Outcome, parse
from controlplane.simulate.closed_loop.run import START_S, run
from controlplane.simulate.engine import Settings, simulate
from controlplane.simulate.network import Conditions, Noise

pytestmark = pytest.mark.slow

TRUTH = {"t4": KnownService({"a": tuple(4.0 + 1.0 * k for k in range(1, 9)), "b": (6.0,)}, {("a", "b"): 0.2})}
NOISY = Conditions(noise={("t4", "a"): Noise(jitter=0.05), ("t4", "b"): Noise(jitter=0.05)})
SECONDS = 40.0


def shadowed(plan: Plan, policy: ShadowPolicy = ShadowPolicy.HOT, other: str | None = None) -> Plan:
    """The plan with a shadow of every partition, on GPU `other` or on its own."""

    def covered(gpu: str, partition: Partition) -> Partition:
        shadow = Shadow(policy, other or gpu, STEP_PERCENT, partition.percent + STEP_PERCENT)
        return replace(partition, percent=40.0, shadow=shadow)

    gpus = (replace(g, partitions=tuple(covered(g.id, p) for p in g.partitions)) for g in plan.gpus)
    return replace(plan, gpus=tuple(gpus))


@pytest.fixture
def plan(plan_of) -> Plan:
    """Two partitions of one GPU, and one that stands by elsewhere."""
    rows = (
        ("t4-0", "wa-1", ServedModel("a", 8), [("wa", 200.0)]),
        ("t4-0", "wb-1", ServedModel("b", 1), [("wb", 50.0)]),
    )
    return shadowed(plan_of(*rows, ("t4-1", "wc-1", ServedModel("a", 8), [("wc", 50.0)]), slo_ms=60.0))


def served(plan: Plan, *faults: Fault, guard: bool = True) -> Outcome:
    return run(plan, TRUTH, Settings(SECONDS), NOISY, faults, guard=guard)


def lost(outcome: Outcome, workload: str) -> float:
    (one,) = (w for w in outcome.workloads if w.name == workload)
    return float(one.late.sum())


def test_a_fleet_without_faults_serves_as_the_simulator_says(plan: Plan) -> None:
    alone = simulate(plan, TRUTH, Settings(SECONDS), NOISY)
    for guard in (True, False):
        outcome = served(plan, guard=guard)
        assert [w.sent.sum() for w in outcome.workloads] == [w.requests for w in alone.workloads]
        late = [w.violations_percent for w in alone.workloads]
        assert [w.late_percent for w in outcome.workloads] == pytest.approx(late)
        assert not [h for h in outcome.happened if h.redirect]


def test_a_slow_server_is_left_for_its_shadow(plan: Plan) -> None:
    fault = Fault(Kind.SLOW, "wa-1", 20.0, 3.0)
    (guarded,), (alone,) = (served(plan, fault, guard=guard).repairs for guard in (True, False))
    assert guarded.redirected_s is not None
    assert guarded.redirected_s < 5.0
    assert guarded.late_s < 10
    assert alone.redirected_s is None
    assert alone.late_s > 15


def test_a_model_slower_than_planned_is_slower_on_every_server(plan: Plan) -> None:
    fault = Fault(Kind.SLOWER, "a", 20.0, 3.0)
    outcome = served(plan, fault)
    # The shadow of a tenth more is as slow, so nothing cures it.
    assert {w.name for w in outcome.workloads if w.late[-10:].sum() > 0.5 * w.sent[-10:].sum()} == {"wa"}
    assert outcome.repairs[0].redirected_s is not None
    assert any("times as long as planned" in h.text or "all there is" in h.text for h in outcome.happened)


def test_the_partitions_of_a_slow_model_move_in_one_commit_and_its_time_is_learned(plan_of) -> None:
    rows = [(f"t4-{n}", f"w{n}-1", ServedModel("a", 8), [(f"w{n}", 300.0)]) for n in range(3)]
    plan = predicted(shadowed(plan_of(*rows, slo_ms=30.0)), p99_ms=17.5)
    happened = served(plan, Fault(Kind.SLOWER, "a", 20.0, 1.5)).happened
    (learned,) = (h for h in happened if "the learned times is proposed" in h.text)
    assert learned.at_s < 22.0
    moved = {h.subject for h in happened if h.redirect and h.at_s <= learned.at_s}
    assert moved == {"w0-1", "w1-1", "w2-1"}, "all of them, with or before the one that shows the error"


def test_a_partition_with_few_requests_moves_with_the_one_that_shows_the_error(plan_of) -> None:
    """Of 1/s it would take many seconds to see anything of its own."""
    rates = {"w0": 300.0, "w1": 1.0}
    rows = [(f"t4-{w}", f"{w}-1", ServedModel("a", 8), [(w, rate)]) for w, rate in rates.items()]
    plan = predicted(shadowed(plan_of(*rows, slo_ms=30.0)), p99_ms=25.0)
    happened = served(plan, Fault(Kind.SLOWER, "a", 1.0, 1.5)).happened
    learned_s = next(h.at_s for h in happened if "the learned times is proposed" in h.text)
    assert next(h.at_s for h in happened if h.redirect and h.subject == "w1-1") == learned_s


def test_the_time_that_requests_spend_outside_of_batches_makes_no_server_slow(plan_of) -> None:
    """A model of 3 ms and a frontend of 2 ms, planned at 0.91 of the SLO: most batches follow a rest."""
    truth = {"t4": KnownService({"a": (3.0,)}, {})}
    noisy = Conditions(noise={("t4", "a"): Noise(jitter=0.05, frontend_ms=2.0)})
    (p99_ms,) = (w.p99_ms for w in simulate(small(plan_of, 10.0), truth, Settings(900.0), noisy).workloads)
    plan = small(plan_of, p99_ms / 0.91, p99_ms)
    outcome = run(plan, truth, Settings(120.0), noisy)
    assert (outcome.workloads[0].holds, outcome.happened) == (True, ())
    slower = run(plan, truth, Settings(120.0), noisy, [Fault(Kind.SLOWER, "a", 20.0, 1.5)])
    assert slower.repairs[0].redirected_s is not None


def small(plan_of, slo_ms: float, p99_ms: float | None = None) -> Plan:
    plan = shadowed(plan_of(("t4-0", "w-1", ServedModel("a", 1), [("w", 20.0)]), slo_ms=slo_ms))
    known = Prediction(execution_ms=3.0, p99_ms=p99_ms, utilisation=0.06, batch_ms=(3.0,), frontend_ms=2.0)
    return with_prediction(plan, known)


def predicted(plan: Plan, p99_ms: float) -> Plan:
    """The plan with the true times of model a beside no neighbour."""
    known = Prediction(
        execution_ms=12.0, p99_ms=p99_ms, utilisation=0.4, batch_ms=tuple(4.0 + k for k in range(1, 9))
    )
    return with_prediction(plan, known)


def with_prediction(plan: Plan, known: Prediction) -> Plan:
    def with_times(partition: Partition) -> Partition:
        return replace(partition, workloads=tuple(replace(w, predicted=known) for w in partition.workloads))

    gpus = (replace(g, partitions=tuple(map(with_times, g.partitions))) for g in plan.gpus)
    return replace(plan, gpus=tuple(gpus))


def test_a_crash_loses_nothing_where_a_shadow_stands_by(plan: Plan) -> None:
    calm = lost(served(plan), "wa")
    outcome = served(plan, Fault(Kind.CRASH, "wa-1", 20.0))
    assert lost(outcome, "wa") <= calm + 5
    after = [h.at_s - 20.0 for h in outcome.happened if h.subject == "wa-1" and "stands by" in h.text]
    assert after == [pytest.approx(START_S, abs=0.5)], "the next shadow"


@pytest.mark.parametrize("policy", [ShadowPolicy.NONE, ShadowPolicy.WARM])
def test_a_crash_without_a_hot_shadow_is_repaired_by_the_guard_alone(
    plan: Plan, policy: ShadowPolicy
) -> None:
    bare = shadowed(plan, policy)
    fault = Fault(Kind.CRASH, "wa-1", 20.0)
    (guarded,), (alone,) = (served(bare, fault, guard=guard).repairs for guard in (True, False))
    assert guarded.late_s <= START_S + 3
    assert alone.late_s == SECONDS - 20


def test_a_warm_shadow_serves_after_the_time_that_the_plan_says(plan: Plan) -> None:
    fault = Fault(Kind.CRASH, "wa-1", 20.0)
    short, long = (served(loading(shadowed(plan, ShadowPolicy.WARM), s), fault) for s in (0.2, 3.5))
    assert long.repairs[0].late_s > short.repairs[0].late_s


def loading(plan: Plan, seconds: float) -> Plan:
    """The plan with shadows that load so long."""

    def slow(partition: Partition) -> Partition:
        assert partition.shadow is not None
        return replace(partition, shadow=replace(partition.shadow, load_s=seconds))

    return replace(plan, gpus=tuple(replace(g, partitions=tuple(map(slow, g.partitions))) for g in plan.gpus))


def test_shadows_elsewhere_cover_a_lost_gpu(plan: Plan) -> None:
    elsewhere = shadowed(plan, other="t4-1")
    fault = Fault(Kind.LOST, "t4-0", 20.0)
    covered, bare = (served(one, fault) for one in (elsewhere, shadowed(plan, ShadowPolicy.NONE)))
    assert covered.repairs[0].late_s <= 2
    assert bare.repairs[0].late_s == SECONDS - 20


def test_what_happens_to_one_gpu_does_not_change_another(plan: Plan) -> None:
    calm, hit = (
        served(plan),
        served(plan, Fault(Kind.CRASH, "wa-1", 20.0), Fault(Kind.SLOW, "wb-1", 30.0, 4.0)),
    )
    for outcome in (calm, hit):
        assert [w.name for w in outcome.workloads] == ["wa", "wb", "wc"]
    np.testing.assert_array_equal(calm.workloads[2].sent, hit.workloads[2].sent)
    np.testing.assert_array_equal(calm.workloads[2].late, hit.workloads[2].late)


def test_a_fault_is_read_and_written_alike(plan: Plan) -> None:
    for text in ("slow:wa-1*1.5@600", "slower:a*1.1@0", "crash:wb-1@0.5", "lost:t4-1@60"):
        assert str(parse(text, plan)) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slow:wa-1@600", "is not slow:PARTITION"),
        ("crash:wa-1*2@600", "is not slow:PARTITION"),
        ("burn:wa-1@600", "is not slow:PARTITION"),
        ("crash:wa@600", "no partition 'wa'; it has wa-1, wb-1, wc-1"),
        ("slower:wa-1*2@600", "no model 'wa-1'; it has a, b"),
        ("slower:a@600", "is not slow:PARTITION"),
        ("lost:gpu@600", "no GPU 'gpu'; it has t4-0, t4-1"),
        ("slow:wa-1*0@600", "greater than 0"),
    ],
)
def test_a_wrong_fault_is_named(plan: Plan, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse(text, plan)


def test_a_fault_after_the_end_is_refused(plan: Plan) -> None:
    with pytest.raises(InputError, match="after the end, 40 s"):
        served(plan, Fault(Kind.CRASH, "wa-1", 40.0))


def sharing(plan: Plan) -> Plan:
    """The plan with one shadow for both partitions of its first GPU."""
    first, *others = shadowed(plan, ShadowPolicy.SHARED).gpus
    own = replace(first, shared=SharedShadow("standby", 50.0))
    return replace(plan, gpus=(own, *(replace(g, partitions=()) for g in others)))


@pytest.mark.parametrize("kind", [Kind.CRASH, Kind.SLOW])
def test_a_shared_shadow_serves_one_partition_until_that_has_a_server_of_its_own(plan_of, kind: Kind) -> None:
    rows = (
        ("t4-0", "wa-1", ServedModel("a", 8), [("wa", 200.0)]),
        ("t4-0", "wb-1", ServedModel("b", 1), [("wb", 50.0)]),
    )
    plan = sharing(plan_of(*rows, slo_ms=60.0))
    outcome = served(plan, Fault(kind, "wa-1", 20.0, 3.0 if kind is Kind.SLOW else 1.0))
    moves = [h for h in outcome.happened if h.redirect]
    assert [h.subject for h in moves] == ["wa-1", "wa-1"], "there and back, and its neighbour stays"
    assert ".standby.shared." in moves[0].text
    assert "share given back" in moves[1].text
    (repair,) = outcome.repairs
    assert repair.late_s < 10
    late = {w.name: w.late[-10:].sum() for w in outcome.workloads}
    assert late == {"wa": 0.0, "wb": 0.0}
