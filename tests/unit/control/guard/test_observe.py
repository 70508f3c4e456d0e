"""Which partitions a tick looks at: those of which something is new, and those whose time has come."""

import math
from dataclasses import replace

import pytest

from controlplane.control.guard import deaths, decide, observe
from controlplane.control.guard.effects import Redirect
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.state import GuardedPartition, GuardState, Launches, Limits, PlacedServer
from controlplane.domain.observation import GONE, Answer, FleetSeen, Health, ServerSeen
from controlplane.domain.workload import ShadowPolicy

READY = ServerSeen(Health.READY)
SERVERS = {f"{name}.{role}": READY for name in ("W1", "W2") for role in ("a", "s")}


def seen(
    now_s: float, servers: dict[str, ServerSeen] = SERVERS, answers: tuple[Answer, ...] = ()
) -> FleetSeen:
    return FleetSeen(now_s, answers, servers)


def tick(state: GuardState, observed: FleetSeen) -> GuardState:
    return decide.tick(state, observed)[0]


@pytest.fixture
def rested() -> GuardState:
    """Two partitions on a GPU each, about which nothing has been new for a tick, at 1 s."""
    partitions = tuple(
        GuardedPartition(name, gpu, 50.0, (Promise(name, 100.0, 10.0),), ShadowPolicy.HOT, gpu, 10.0)
        for name, gpu in (("W1", "g1"), ("W2", "g2"))
    )
    placed = {
        p.id: (PlacedServer(f"{p.id}.a", p.gpu, 50.0), PlacedServer(f"{p.id}.s", p.gpu, 60.0))
        for p in partitions
    }
    state = decide.begin(partitions, placed, Limits())
    for now_s in (0.8, 1.0):
        state = tick(state, seen(now_s))
    return state


def looked_at(before: GuardState, after: GuardState) -> set[str]:
    return {name for name, watch in after.watches.items() if watch is not before.watches[name]}


def test_a_partition_about_which_nothing_is_new_is_left_as_it_is(rested: GuardState) -> None:
    assert set(rested.due_s.values()) == {math.inf}
    assert looked_at(rested, tick(rested, seen(1.2))) == set()


def test_what_a_drained_server_answered_is_learned_while_all_partitions_rest(rested: GuardState) -> None:
    for took_ms, patience_s in ((20_000.0, 30.0), (1_800_000.0, 90.0)):  # a long stream, or a slow client
        drained = Answer(1.1, took_ms, False, "W2", "")
        after = tick(rested, seen(1.2, answers=(drained,)))
        assert deaths.patience_s(after.watches["W2"], after.limits) == patience_s
        assert after.watches["W1"] is rested.watches["W1"]


@pytest.mark.parametrize(
    "observed",
    [
        seen(1.2, {**SERVERS, "W2.s": ServerSeen(Health.STARTING)}),
        seen(1.2, {name: found for name, found in SERVERS.items() if name != "W2.s"}),
        seen(1.2, answers=(Answer(1.1, 20.0, False, "W2", "W2.a"),)),
    ],
    ids=["a server changed", "a server is gone", "a request ended"],
)
def test_what_is_new_about_one_partition_is_its_own_affair(rested: GuardState, observed: FleetSeen) -> None:
    assert looked_at(rested, tick(rested, observed)) == {"W2"}


def test_a_share_that_moves_concerns_the_partitions_of_its_gpus_only(rested: GuardState) -> None:
    fallen = {**SERVERS, "W1.a": GONE}
    after, effects = decide.tick(rested, seen(1.2, fallen))
    assert [type(one) for one in effects if isinstance(one, Redirect)] == [Redirect]
    assert after.due_s["W1"] == observe.AT_ONCE
    assert after.due_s["W2"] == math.inf


def test_answers_that_waited_count_in_the_time_since_all_were_given(rested: GuardState) -> None:
    promise, rate_rps = rested.watches["W2"].queues[0].promise, 20.0
    waited = tuple(Answer(1.0 + n / rate_rps, 20.0, False, "W2", "W2.a") for n in range(1, 5))
    between = tick(rested, seen(1.1))
    after = tick(between, replace(seen(1.2, answers=waited), since_s=1.0))
    at_once = tick(rested, seen(1.2, answers=waited))
    assert after.watches["W2"].queues[0].rates_rps == at_once.watches["W2"].queues[0].rates_rps
    assert promise.rate_rps < after.watches["W2"].queues[0].rates_rps[0] < rate_rps


def test_all_are_looked_at_after_a_standstill(rested: GuardState) -> None:
    assert looked_at(rested, tick(rested, seen(1.0 + 2.0 * rested.limits.gap_s))) == {"W1", "W2"}


def test_a_decision_that_could_not_be_carried_out_is_made_again(rested: GuardState) -> None:
    dead = {**SERVERS, "W1.a": GONE}
    observed = observe.observe(rested, seen(1.2, dead))
    again = observe.observe(observed, seen(1.4, dead))  # the change was seen before
    _, effects = decide.decide(again, seen(1.4, dead))
    assert any(isinstance(effect, Redirect) for effect in effects)


def test_times_that_lead_to_a_decision_are_kept(rested: GuardState) -> None:
    limits, watch = rested.limits, rested.watches["W1"]
    look = seen(1.2)
    settling = replace(watch, settled_s=4.0)
    assert observe.next_look_s(settling, look, limits) == 4.0
    tried = replace(watch, launches=Launches(1, retry_at_s=7.0))
    assert observe.next_look_s(tried, look, limits) == 7.0
    tried = replace(watch, launches=Launches(1, retry_at_s=0.0))
    assert observe.next_look_s(tried, look, limits) == 0.8 + limits.loop_s
    waiting = seen(1.2, {**SERVERS, "W1.a": ServerSeen(Health.READY, in_flight=1)})
    assert observe.next_look_s(watch, waiting, limits) == waiting.now_s + observe.AGAIN_S
    late = watch.queues[0].late._replace(charts=(1e3,) * 4)
    suspected = replace(watch, queues=(watch.queues[0]._replace(late=late),))
    assert observe.next_look_s(suspected, look, limits) == observe.AT_ONCE


def test_the_rate_of_a_partition_that_rested_has_fallen_as_in_looks_without_requests() -> None:
    promise = Promise("W", 100.0, 10.0)
    partition = GuardedPartition("W", "g", 50.0, (promise,), ShadowPolicy.NONE, "g", 0.0)
    state = decide.begin((partition,), {"W": (PlacedServer("W.a", "g", 50.0),)}, Limits())
    (watch,) = tick(state, seen(1.0, {"W.a": READY})).watches.values()
    step_by_step = watch
    for tick_no in range(1, 51):
        times = (1.0 + 0.2 * (tick_no - 1), 1.0 + 0.2 * tick_no)
        step_by_step = observe.update(step_by_step, READY, (), times)
    at_once = observe.resumed(watch, 11.0)
    assert at_once.queues[0].rates_rps == pytest.approx(step_by_step.queues[0].rates_rps)
    assert at_once.queues[0].rates_rps[0] < 0.2 * promise.rate_rps
