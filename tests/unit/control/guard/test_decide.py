"""Each row of the guard's table, and the words it finds for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

import pytest
from guard_invariants import validate_state

from controlplane.control.converge.desired import Desired
from controlplane.control.guard import decide, observe
from controlplane.control.guard.effects import (
    Cause,
    DrainAndStop,
    Effect,
    Ending,
    Launch,
    Load,
    OpenBreaker,
    Probe,
    Redirect,
    Refuse,
    Report,
)
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.standbys import is_awaited
from controlplane.control.guard.state import (
    GuardedPartition,
    GuardState,
    Launches,
    Limits,
    Phase,
    PlacedServer,
    guarded_partitions,
    phase,
)
from controlplane.domain.fleet import Delays
from controlplane.domain.observation import Answer, FleetSeen, Health, HostSeen, Level, ServerSeen
from controlplane.domain.plan import (
    Partition,
    Placement,
    Plan,
    PlannedGpu,
    Prediction,
    Rule,
    ServedModel,
    Shadow,
)
from controlplane.domain.workload import ShadowPolicy

TICK_S = 0.2
READY = ServerSeen(Health.READY)
NO_FLEET = Desired({}, {})


def partition(
    name: str = "W1", percent: float = 40.0, shadow_gpu: str = "g0", rate: float = 100.0
) -> GuardedPartition:
    promise = Promise(name, slo_ms=50.0, rate_rps=rate, execution_ms=20.0)
    return GuardedPartition(name, "g0", percent, (promise,), ShadowPolicy.HOT, shadow_gpu, 10.0)


@dataclass
class Bench:
    """Feeds one guard, a tick at a time."""

    state: GuardState
    servers: dict[str, ServerSeen]
    now_s: float = 0.0
    effects: list[Effect] = field(default_factory=list)
    host: HostSeen | None = None
    answers: list[Answer] = field(default_factory=list)
    """More answers of the next tick."""

    def tick(
        self,
        ticks: int = 1,
        *,
        late: Sequence[str] = (),
        rate: float = 100.0,
        took_ms: float = 20.0,
    ) -> list[Effect]:
        """Every ready active server answers at `rate`; those named in `late` at three times the SLO."""
        fresh: list[Effect] = []
        for _ in range(ticks):
            answers, self.answers = self.answers, []
            for watch in self.state.watches.values():
                name = watch.active.server
                if name not in self.servers or self.servers[name].health is not Health.READY:
                    continue
                count = round(rate * TICK_S)
                for i in range(count):
                    took = 150.0 if watch.partition.id in late else took_ms
                    at = self.now_s + TICK_S * (i + 1) / count
                    answers.append(Answer(at, took, False, watch.partition.promises[0].endpoint, name))
            self.now_s += TICK_S
            self.state, done = decide.tick(
                self.state, FleetSeen(self.now_s, tuple(answers), dict(self.servers), self.host)
            )
            validate_state(self.state)
            fresh += done
            for effect in done:
                if isinstance(effect, Launch):
                    self.servers[effect.server] = ServerSeen(Health.STARTING)
                if isinstance(effect, DrainAndStop):
                    self.servers.pop(effect.server, None)
        self.effects += fresh
        return fresh

    def phase(self, partition: str = "W1") -> Phase:
        return phase(self.state.watches[partition], self.now_s)

    def ready(self) -> None:
        self.servers = {n: READY if s.health is Health.STARTING else s for n, s in self.servers.items()}


def bench(*kept: GuardedPartition, standby: bool = True, spare: float = 10.0) -> Bench:
    placed_servers, servers = {}, {}
    for one in kept:
        placed_servers[one.id] = (PlacedServer(f"{one.id}.a", one.gpu, one.percent),)
        servers[f"{one.id}.a"] = READY
        if standby:
            placed_servers[one.id] += (PlacedServer(f"{one.id}.s", one.shadow_gpu, one.percent + spare),)
            servers[f"{one.id}.s"] = READY
    made = Bench(decide.begin(kept, placed_servers, Limits()), servers)
    made.tick()
    return made


T = TypeVar("T")


def of(kind: type[T], effects: Sequence[Effect]) -> list[T]:
    return [e for e in effects if isinstance(e, kind)]


def said(effects: Sequence[Effect], level: Level) -> str:
    return " | ".join(s.reason for s in of(Report, effects) if s.level is level)


def ends(effects: Sequence[Effect], server: str = "W1.a") -> DrainAndStop:
    (found,) = (one for one in of(DrainAndStop, effects) if one.server == server)
    return found


def test_a_fleet_that_keeps_its_promises_is_left_alone() -> None:
    b = bench(partition(), partition("W2"))
    assert b.tick(200) == []
    assert b.phase() is Phase.GUARDED


def test_a_slow_server_is_left_for_its_shadow_and_a_larger_one_is_started() -> None:
    b = bench(partition())
    effects = b.tick(10, late=["W1"])
    assert [type(e) for e in effects[:2]] == [Redirect, DrainAndStop]
    assert effects[0] == Redirect("W1", "W1.a", "W1.s", Cause.SLOW)
    assert ends(effects).ending is Ending.DRAINED
    (launch,) = of(Launch, effects)
    assert (launch.gpu, launch.percent) == ("g0", 60.0)
    assert b.phase() is Phase.SETTLING
    assert decide.routes(b.state, FleetSeen(b.now_s, (), b.servers))["W1"].members == ("W1.s",)


def test_no_second_redirect_before_it_has_settled() -> None:
    b = bench(partition())
    b.tick(10, late=["W1"])
    b.ready()
    assert not of(Redirect, b.tick(3, late=["W1"]))
    later = of(Redirect, b.tick(40, late=["W1"]))
    assert later[0].source == "W1.s"


def test_a_contended_host_is_named_in_the_evidence_and_in_the_way_out() -> None:
    contended, calm = bench(partition(percent=80.0)), bench(partition(percent=80.0))
    contended.host, calm.host = HostSeen(waiting=0.8), HostSeen(waiting=0.1)
    for b in (contended, calm):
        for _ in range(300):
            b.tick(late=["W1"])
            b.ready()
    evidence = "the host is contended: the gateway waited for a core in 80% of the time it was ready to run"
    assert evidence in said(contended.effects, Level.WARNING), "a redirect says it"
    loud = said(contended.effects, Level.CRITICAL)
    assert evidence in loud
    assert "leave a core to the gateway and clients" in loud
    assert "a longer SLO" not in loud
    told = said(calm.effects, Level.WARNING) + said(calm.effects, Level.CRITICAL)
    assert "contended" not in told
    assert "a lower rate, a longer SLO or more GPUs" in told


def test_larger_and_larger_until_nothing_is_left_and_then_loudly() -> None:
    b = bench(partition(percent=80.0))
    for _ in range(300):
        b.tick(late=["W1"])
        b.ready()
    shares = [launch.percent for launch in of(Launch, b.effects)]
    assert shares[:2] == [100.0, 100.0]
    assert len(of(Redirect, b.effects)) == 2  # 80 -> 90 -> 100, and no redirect to the same share
    assert "all there is" in said(b.effects, Level.CRITICAL)
    assert said(b.effects, Level.CRITICAL).count("all there is") == 1
    assert b.phase() is Phase.EXHAUSTED
    b.tick(400)
    assert b.phase() is Phase.GUARDED
    assert "no sign of a broken SLO" in said(b.effects, Level.INFO)


def test_a_broken_slo_is_reported_though_nothing_moves_and_so_is_its_end() -> None:
    b = bench(partition())
    for _ in range(12):
        b.tick(59, rate=20.0)
        b.tick(1, late=["W1"], rate=20.0)  # 1.7 % late over two minutes, too few for an alarm
    assert of(Redirect, b.effects) == []
    assert "the P99 is above 50 ms" in said(b.effects, Level.WARNING)
    assert b.phase() is Phase.LATE
    b.tick(500, rate=20.0)
    assert b.phase() is Phase.GUARDED
    assert said(b.effects, Level.INFO).count("the P99 is within the SLO again") == 1


def test_more_traffic_than_planned_is_said_and_not_redirected() -> None:
    b = bench(partition())
    b.tick(3, rate=200.0)  # the queue takes its time to grow
    effects = b.tick(50, late=["W1"], rate=200.0)
    assert not of(Redirect, effects)
    assert "more traffic than planned: W1: " in said(effects, Level.WARNING)
    assert "against 100 planned" in said(effects, Level.WARNING)


def test_a_slow_computation_is_the_servers_fault_at_any_rate() -> None:
    b = bench(partition())
    b.servers["W1.a"] = ServerSeen(Health.READY, queue_ms=90.0, compute_ms=45.0)
    effects = b.tick(50, late=["W1"], rate=200.0)
    assert of(Redirect, effects)[0].cause is Cause.SLOW
    assert "queue 90.0 ms, compute 45.0 ms" in said(effects, Level.WARNING)


def test_larger_requests_than_planned_are_more_traffic_and_no_slow_server() -> None:
    b = bench(partition())
    b.servers["W1.a"] = ServerSeen(Health.READY, queue_ms=90.0, compute_ms=45.0, inferences={"W1": 8.0})
    effects = b.tick(50, late=["W1"])
    assert not of(Redirect, effects)
    assert "100 req/s against 100 planned, of 8.0 inferences each instead of 1" in said(
        effects, Level.WARNING
    )


def test_many_small_requests_instead_of_few_large_ones_are_as_planned() -> None:
    promise = Promise("W1", 50.0, 25.0, execution_ms=20.0, inferences=4.0)
    b = bench(replace(partition(), promises=(promise,)))
    b.servers["W1.a"] = ServerSeen(Health.READY, queue_ms=90.0, compute_ms=45.0, inferences={"W1": 1.0})
    assert of(Redirect, b.tick(50, late=["W1"], rate=100.0))[0].cause is Cause.SLOW


def test_larger_requests_to_another_model_beside_it_excuse_nobody() -> None:
    promises = tuple(
        Promise(e, 50.0, 100.0, execution_ms=20.0, inferences=n) for e, n in (("W1", 1), ("V", 4))
    )
    b = bench(replace(partition(), promises=promises))
    each = {"W1": 1.0, "V": 4.0}
    b.servers["W1.a"] = ServerSeen(Health.READY, queue_ms=90.0, compute_ms=45.0, inferences=each)
    assert of(Redirect, b.tick(50, late=["W1"]))[0].cause is Cause.SLOW


def test_a_little_too_much_traffic_is_told_by_its_queue() -> None:
    # 15 % above plan drowns in the noise of the count; a batch as fast as predicted says whose fault it is.
    b = bench(partition())
    b.servers["W1.a"] = ServerSeen(Health.READY, queue_ms=90.0, compute_ms=19.0)
    for _ in range(200):
        b.tick(rate=120.0)
    effects = b.tick(20, late=["W1"], rate=120.0)
    assert not of(Redirect, effects)
    assert "queue 90.0 ms, compute 19.0 ms" in said(effects, Level.WARNING)


@pytest.mark.parametrize(
    ("seen", "cause", "ending"),
    [
        (None, Cause.CRASH, Ending.AT_ONCE),
        (ServerSeen(Health.FAILING, reason="refused"), Cause.FAILING, Ending.AT_ONCE),
        # What its dead process held may be what it died of, and is not to reach the shadow.
        (ServerSeen(Health.IMPAIRED, reason="stub died"), Cause.IMPAIRED, Ending.REFUSED),
    ],
)
def test_a_dead_server_is_left_at_once_even_while_settling(
    seen: ServerSeen | None, cause: Cause, ending: Ending
) -> None:
    b = bench(partition())
    b.tick(10, late=["W1"])
    b.ready()
    b.tick()
    assert b.phase() is Phase.SETTLING
    active = b.state.watches["W1"].active.server
    if seen is None:
        del b.servers[active]
    else:
        b.servers[active] = seen
    effects = b.tick()
    assert of(Redirect, effects)[0].cause is cause
    assert ends(effects, active).ending is ending


def test_that_a_server_was_left_for_failures_is_known_until_the_next_one() -> None:
    b = bench(partition())
    b.tick(10)
    b.servers["W1.a"] = ServerSeen(Health.FAILING, reason="refused")
    b.tick()
    failed_s = b.state.watches["W1"].failed_s
    assert failed_s == b.now_s
    b.tick(40)
    b.ready()
    assert [one.cause for one in of(Redirect, b.tick(40))] == [Cause.SHARE]
    assert b.state.watches["W1"].failed_s == failed_s


@pytest.mark.parametrize(("sequences", "patience_s"), [(0, Limits().overdue_s), (1, Limits().drain_s)])
def test_a_hung_server_is_waited_for_as_long_as_its_sequences_live(sequences: int, patience_s: float) -> None:
    b = bench(partition())
    b.servers["W1.a"] = ServerSeen(Health.HUNG, in_flight=3, sequences=sequences)
    assert ends(b.tick(), "W1.a").patience_s == patience_s


def test_an_impaired_server_serves_on_while_nothing_else_can() -> None:
    b = bench(partition(), standby=False)
    b.tick()
    b.servers["W1.a"] = ServerSeen(Health.IMPAIRED, reason="stub died")
    effects = b.tick(5)
    assert not of(Redirect, effects)
    assert of(Probe, effects) == [Probe("W1.a")]
    assert "stub died, and nothing stands by" in said(effects, Level.WARNING)
    assert b.phase() is Phase.EXPOSED
    b.ready()
    assert of(Redirect, b.tick())[0].cause is Cause.IMPAIRED


def test_an_impaired_server_without_a_shadow_gets_a_successor() -> None:
    b = bench(replace(partition(), policy=ShadowPolicy.NONE), standby=False)
    b.tick(3)
    assert not of(Launch, b.effects)
    b.servers["W1.a"] = ServerSeen(Health.IMPAIRED, reason="stub died")
    assert of(Launch, b.tick())
    b.ready()
    assert of(Redirect, b.tick())[0].cause is Cause.IMPAIRED
    assert not of(Launch, b.tick(5)), "nothing is to stand by once it serves"


def test_an_impaired_shadow_is_replaced() -> None:
    b = bench(partition())
    b.servers["W1.s"] = ServerSeen(Health.IMPAIRED, reason="stub died")
    effects = b.tick()
    assert ends(effects, "W1.s").ending is Ending.REFUSED
    assert "shadow W1.s lost: stub died" in said(effects, Level.WARNING)


def test_a_hang_is_no_answer_while_several_are_owed() -> None:
    b = bench(partition(rate=5.0))
    b.tick(3, rate=5.0)
    b.servers["W1.a"] = ServerSeen(Health.READY, in_flight=4)
    assert not of(Redirect, b.tick(2, rate=0.0))
    effects = b.tick(1, rate=0.0)
    assert of(Redirect, effects)[0].cause is Cause.HANG
    ending = ends(effects)
    assert ending.ending is Ending.HUNG
    assert ending.patience_s - ending.silent_s > 50.0, "one of them may be a long request"


@pytest.mark.parametrize("seen", [{"in_flight": 2}, {"streaming": 30}, {"in_flight": 2, "streaming": 30}])
def test_few_requests_or_streams_may_take_long_but_not_for_ever(seen: dict[str, int]) -> None:
    b = bench(partition(rate=5.0))
    b.tick(3, rate=5.0)
    b.servers["W1.a"] = ServerSeen(Health.READY, **seen)
    ticks_a_minute = round(Limits().overdue_s / TICK_S)
    assert not of(Redirect, b.tick(ticks_a_minute - 5, rate=0.0))
    effects = b.tick(10, rate=0.0)
    assert of(Redirect, effects)[0].cause is Cause.HANG
    assert ends(effects).silent_s > ends(effects).patience_s, "nothing is to be waited for"


def test_on_a_contended_host_several_answers_are_due_later() -> None:
    b = bench(partition(rate=5.0))
    b.host = HostSeen(waiting=0.8)
    b.tick(3, rate=5.0)
    b.servers["W1.a"] = ServerSeen(Health.READY, in_flight=4)
    assert not of(Redirect, b.tick(4, rate=0.0))
    assert of(Redirect, b.tick(2, rate=0.0))[0].cause is Cause.HANG


def test_a_server_whose_counters_move_does_not_hang() -> None:
    b = bench(partition(rate=5.0))
    b.servers["W1.a"] = ServerSeen(Health.READY, in_flight=9, progressed=True)
    assert not of(Redirect, b.tick(100, rate=0.0))


def refusal(b: Bench) -> Answer:
    return Answer(b.now_s, 1.0, False, "W1", "W1.a", refused=True)


def test_a_model_that_hangs_and_refuses_what_its_full_queue_does_not_take_is_overdue() -> None:
    b = bench(partition(rate=5.0))
    b.tick(3, rate=5.0)
    b.servers["W1.a"] = ServerSeen(Health.READY, in_flight=8)
    redirects: list[Redirect] = []
    began_s = b.now_s
    while not redirects and b.now_s < 1200.0:
        b.answers = [refusal(b)]
        redirects = of(Redirect, b.tick(rate=0.0))
    assert redirects[0].cause is Cause.HANG
    assert b.now_s - began_s < Limits().overdue_s + 1.0
    assert "no answer but refusals for 60" in said(b.effects, Level.WARNING)
    assert ends(b.effects).silent_s > ends(b.effects).patience_s


def test_a_full_queue_of_a_model_that_works_is_no_hang() -> None:
    b = bench(partition(rate=5.0))
    b.servers["W1.a"] = ServerSeen(Health.READY, in_flight=8)
    for turn in range(1000):
        b.answers = [refusal(b)]
        assert not of(Redirect, b.tick(rate=5.0 if turn % 100 == 0 else 0.0))


def test_a_process_that_answers_nothing_hangs_at_once() -> None:
    b = bench(partition(rate=5.0))
    b.tick(3, rate=5.0)
    b.servers["W1.a"] = ServerSeen(Health.HUNG, in_flight=1)
    effects = b.tick(1, rate=0.0)
    assert of(Redirect, effects)[0].cause is Cause.HANG


def test_a_shadow_that_answers_nothing_is_replaced() -> None:
    b = bench(partition())
    b.servers["W1.s"] = ServerSeen(Health.HUNG)
    assert ends(b.tick(), "W1.s").ending is Ending.HUNG


def test_what_a_model_once_took_is_no_hang_the_next_time() -> None:
    b = bench(partition(rate=5.0))
    b.tick(3, rate=5.0)
    server = b.state.watches["W1"].active.server
    # A long request, whose answer comes from the server that was left meanwhile.
    b.answers = [Answer(b.now_s, 6_000.0, False, "W1", "")]
    b.tick()
    b.servers[server] = ServerSeen(Health.READY, in_flight=9)
    assert not of(Redirect, b.tick(round(6.0 / TICK_S), rate=0.0))
    assert of(Redirect, b.tick(round(6.0 / TICK_S), rate=0.0))[0].cause is Cause.HANG


def test_a_long_request_that_the_spec_names_is_no_hang() -> None:
    planned = partition(rate=5.0)
    b = bench(replace(planned, promises=(replace(planned.promises[0], longest_ms=5_000.0),)))
    b.tick(3, rate=5.0)
    b.servers["W1.a"] = ServerSeen(Health.READY, in_flight=1)
    assert not of(Redirect, b.tick(round(4.5 / TICK_S), rate=0.0))
    assert of(Redirect, b.tick(round(1.0 / TICK_S), rate=0.0))[0].cause is Cause.HANG


def test_a_request_within_the_widest_slo_of_its_queue_is_no_hang() -> None:
    planned = partition(rate=5.0)
    b = bench(replace(planned, promises=(replace(planned.promises[0], widest_slo_ms=100_000.0),)))
    b.tick(3, rate=5.0)
    for open_requests in (1, 9):
        b.servers["W1.a"] = ServerSeen(Health.READY, in_flight=open_requests)
        assert not of(Redirect, b.tick(round(95.0 / TICK_S), rate=0.0))
    assert of(Redirect, b.tick(round(15.0 / TICK_S), rate=0.0))[0].cause is Cause.HANG


def test_a_request_may_wait_for_the_place_of_a_sequence_that_lives() -> None:
    b = bench(partition(rate=5.0))
    b.tick(3, rate=5.0)
    b.servers["W1.a"] = ServerSeen(Health.READY, streaming=1, sequences=1)
    assert not of(Redirect, b.tick(round(590.0 / TICK_S), rate=0.0))
    assert of(Redirect, b.tick(round(15.0 / TICK_S), rate=0.0))[0].cause is Cause.HANG


def test_requests_refused_by_policy_are_overload_and_no_fault() -> None:
    b = bench(partition())
    for _ in range(20):
        b.answers = [Answer(b.now_s, 1.0, False, "W1", "W1.a", refused=True)] * 5
        b.tick(rate=0.0)
    assert not of(Redirect, b.effects) + of(Probe, b.effects)
    assert len([one for one in of(Report, b.effects) if "refused" in one.reason]) == 1


def test_time_in_which_the_gateway_stood_still_is_no_servers() -> None:
    b = bench(partition())
    b.tick(3)
    b.host = HostSeen(0.0, stood_s=20.0)
    b.tick(5, late=["W1"])
    b.host = HostSeen(0.0)
    b.tick(2, late=["W1"])
    b.tick(30)
    assert not of(Redirect, b.effects)
    assert of(Redirect, b.tick(10, late=["W1"])), "what is slow afterwards is seen as ever"


def test_a_pause_right_after_a_redirect_is_waited_out_longer() -> None:
    b = bench(partition())
    while b.phase() is not Phase.SETTLING:
        b.tick(late=["W1"])
    b.tick()
    b.ready()
    b.servers[b.state.watches["W1"].active.server] = ServerSeen(Health.READY, in_flight=4)
    assert not of(Redirect, b.tick(4, rate=0.0))
    assert b.phase() is Phase.SETTLING
    assert of(Redirect, b.tick(2, rate=0.0))[0].cause is Cause.HANG


def test_a_host_that_stood_still_is_no_hang_and_no_violation() -> None:
    b = bench(partition(), partition("W2"))
    b.tick(3)
    b.now_s += 5.0  # as after a suspend, or with a host too busy to let anybody look
    b.servers["W2.a"] = ServerSeen(Health.READY, in_flight=300)
    assert of(Redirect, b.tick(1, late=["W1", "W2"])) == []
    assert of(Redirect, b.tick(4, late=["W1"], rate=0.0)) == []
    assert b.phase() is Phase.SETTLING
    b.servers["W2.a"] = READY
    b.tick(50)
    assert not of(Redirect, b.effects)
    assert b.phase() is Phase.LATE, "clients waited, whatever the cause"
    b.tick(600)
    assert b.phase() is Phase.GUARDED
    assert of(Redirect, b.tick(10, late=["W1"])), "what is slow afterwards is seen as ever"


def test_a_host_that_stands_still_again_and_again_is_no_excuse() -> None:
    planned = partition()
    # Of several instances the log tells no batch times: only late answers count.
    promise = replace(planned.promises[0], instances=2)
    b = bench(replace(planned, promises=(promise,)))
    for _ in range(20):
        b.now_s += 2.5
        b.tick(late=["W1"])
    assert of(Redirect, b.effects)[0].cause is Cause.SLOW


def test_a_hang_that_outlasts_a_standstill_is_seen() -> None:
    b = bench(partition())
    b.tick(3)
    b.now_s += 5.0
    b.servers["W1.a"] = ServerSeen(Health.READY, in_flight=300)
    assert of(Redirect, b.tick(8, rate=0.0))[0].cause is Cause.HANG


def test_who_cannot_act_forgets_nothing_and_decides_again() -> None:
    b = bench(partition())
    seen = FleetSeen(b.now_s, (), dict(b.servers))
    while not of(Redirect, decide.decide(b.state, seen)[1]):
        b.now_s += TICK_S
        late = tuple(Answer(b.now_s, 150.0, False, "W1", "W1.a") for _ in range(20))
        seen = FleetSeen(b.now_s, late, dict(b.servers))
        b.state = observe.observe(b.state, seen)
    # The fleet was busy meanwhile, and nobody asks the server any more.
    assert of(Redirect, b.tick(1, rate=0.0))[0].cause is Cause.SLOW


def test_an_idle_server_does_not_hang() -> None:
    assert bench(partition()).tick(100, rate=0.0) == []


def test_failed_requests_ask_for_a_probe_and_only_that() -> None:
    b = bench(partition())
    b.servers["W1.a"] = ServerSeen(Health.READY, failing=Limits().failed_in_a_row)
    effects = b.tick(2)
    assert of(Probe, effects) == [Probe("W1.a")]
    assert not of(Redirect, effects)


def test_nothing_stands_by_and_the_server_dies() -> None:
    b = bench(partition(), standby=False)
    b.tick()  # a shadow is on its way
    assert b.phase() is Phase.EXPOSED
    del b.servers["W1.a"]
    b.tick()
    assert b.phase() is Phase.DOWN
    assert "nothing stands by" in said(b.effects, Level.CRITICAL)
    b.ready()
    effects = b.tick(2)
    assert of(Redirect, effects)[0].cause is Cause.CRASH
    assert b.phase() is Phase.SETTLING


@pytest.mark.parametrize("trouble", ["dead", "impaired", "ending", "slow", "not started yet", "none"])
def test_a_start_is_awaited_where_nothing_serves_its_requests_well(trouble: str) -> None:
    b = bench(partition(), standby=False)
    b.tick()
    assert not is_awaited(b.state.watches["W1"])
    match trouble:
        case "dead":
            del b.servers["W1.a"]
        case "impaired":
            b.servers["W1.a"] = ServerSeen(Health.IMPAIRED)
        case "ending":
            b.servers["W1.a"] = ServerSeen(Health.ENDING)
        case "not started yet":  # as a new controller finds a partition whose only server loads
            b.state = decide.begin((partition(),), {"W1": (PlacedServer("W1.a", "g0", 50.0),)}, Limits())
            b.servers["W1.a"] = ServerSeen(Health.STARTING)
    b.tick(10, late=["W1"] if trouble == "slow" else [])
    assert is_awaited(b.state.watches["W1"]) == (trouble != "none")
    b.ready()
    b.tick(2)
    assert not is_awaited(b.state.watches["W1"])


def test_a_lost_shadow_is_started_again_and_ever_more_rarely() -> None:
    b = bench(partition())
    launched = []
    for _ in range(400):
        for name in [n for n, s in b.servers.items() if s.health is Health.STARTING]:
            b.servers[name] = ServerSeen(Health.GONE, reason="out of memory")
        if "W1.s" in b.servers:
            del b.servers["W1.s"]
        launched += [b.now_s for e in b.tick() if isinstance(e, Launch)]
    gaps = [later - earlier for earlier, later in pairwise(launched)]
    assert gaps == sorted(gaps)
    assert len(launched) == Limits().failures - 1  # the shadow that was lost young counts too
    assert len(of(OpenBreaker, b.effects)) == 1
    assert "servers in a row did not live 60 s" in said(b.effects, Level.CRITICAL)
    assert "out of memory" in said(b.effects, Level.WARNING)
    assert not of(Redirect, b.effects)


def test_a_server_that_served_for_a_while_did_not_fail_to_start() -> None:
    b = bench(partition())
    waited_s = lose_shadows(b, Limits().failures + 1, lives_s=Limits().loop_s + 1.0)
    assert max(waited_s) < 2 * TICK_S, "a partition without a shadow is one fault away from an outage"
    assert not of(OpenBreaker, b.effects)


def test_a_crash_loop_of_servers_that_serve_for_a_while_opens_the_breaker_for_as_long_as_they_live() -> None:
    b = bench(partition())
    waited_s = lose_shadows(b, Limits().failures, lives_s=20.0)
    assert waited_s == sorted(waited_s), "ever more rarely"
    assert len(of(OpenBreaker, b.effects)) == 1
    assert waited_s[-1] == pytest.approx(20.0, abs=1.0)


def test_what_served_for_a_while_is_replaced_at_once_where_nothing_else_serves() -> None:
    b = bench(replace(partition(), policy=ShadowPolicy.NONE), standby=False)
    waited_s = []
    for _ in range(Limits().failures):
        b.tick(100)
        del b.servers[b.state.watches["W1"].active.server]
        died_s = b.now_s
        while not of(Launch, b.tick()):
            assert b.now_s - died_s < Limits().back_off_max_s
        waited_s.append(b.now_s - died_s)
        b.ready()
        b.tick()
    assert max(waited_s[:-1]) < 2 * TICK_S
    assert len(of(OpenBreaker, b.effects)) == 1
    assert waited_s[-1] == pytest.approx(20.0, abs=1.0), "half of the time is served"


def lose_shadows(b: Bench, times: int, lives_s: float) -> list[float]:
    """How long each of so many shadows had no successor that lived so long and died."""
    waited_s = []
    for _ in range(times):
        b.tick(round(lives_s / TICK_S))
        watch = b.state.watches["W1"]
        assert watch.standby is not None
        del b.servers[watch.standby.server]
        died_s = b.now_s
        while not of(Launch, b.tick()):
            assert b.now_s - died_s < Limits().breaker_s
        waited_s.append(b.now_s - died_s)
        b.ready()
    return waited_s


def kill_starts(b: Bench, ticks: int) -> list[float]:
    """When something was started, where no start succeeds."""
    launched = []
    for _ in range(ticks):
        for name in [n for n, s in b.servers.items() if s.health is Health.STARTING]:
            b.servers[name] = ServerSeen(Health.GONE)
        launched += [b.now_s for e in b.tick() if isinstance(e, Launch)]
    return launched


def test_who_is_served_by_nothing_is_not_left_to_the_breaker() -> None:
    b = bench(partition(), standby=False)
    del b.servers["W1.a"]
    launched = kill_starts(b, 1000)
    assert len(of(OpenBreaker, b.effects)) == 1
    assert max(later - earlier for earlier, later in pairwise(launched)) <= Limits().back_off_max_s + 1.0
    assert "the next try is in 60 s" in said(b.effects, Level.CRITICAL)


def test_a_shadow_that_cannot_start_keeps_no_successor_of_a_dead_server_waiting() -> None:
    b = bench(partition(), standby=False)
    kill_starts(b, 300)
    assert of(OpenBreaker, b.effects)
    del b.servers["W1.a"]
    assert of(Launch, b.tick()), "on the dead server's own share, at once"


def test_a_breaker_closes_where_nothing_is_to_stand_by() -> None:
    b = bench(replace(partition(), policy=ShadowPolicy.NONE), standby=False)
    del b.servers["W1.a"]
    kill_starts(b, 300)
    assert b.state.watches["W1"].launches.open
    b.tick(400)
    b.ready()
    b.tick(round(Limits().loop_s / TICK_S) + 5)
    assert b.phase() is Phase.EXPOSED
    assert b.state.watches["W1"].launches == Launches()


@pytest.mark.parametrize("apart", [0, 5])
def test_two_that_die_one_after_the_other_may_have_been_asked_the_same(apart: int) -> None:
    b = bench(partition(), partition("W2"))
    del b.servers["W1.a"]
    if apart:
        b.tick(apart)
    del b.servers["W1.s"]
    b.tick()
    loud = said(b.effects, Level.CRITICAL)
    assert "one of their requests may crash every server" in loud
    assert "a fault of the whole GPU" not in loud


def test_deaths_far_apart_or_of_what_never_served_accuse_no_request() -> None:
    b = bench(partition())
    del b.servers["W1.a"]
    kill_starts(b, 40)
    b.tick(20)
    del b.servers[b.state.watches["W1"].active.server]
    b.tick()
    assert "may crash every server" not in said(b.effects, Level.CRITICAL)


def test_a_warm_shadow_is_loaded_when_it_is_needed() -> None:
    b = bench(replace(partition(), policy=ShadowPolicy.WARM))
    b.servers["W1.s"] = ServerSeen(Health.UNLOADED)
    b.tick()
    del b.servers["W1.a"]
    effects = b.tick()
    assert of(Load, effects) == [Load("W1.s")]
    b.servers["W1.s"] = READY
    assert of(Redirect, b.tick())[0].target == "W1.s"
    assert "may crash every server" not in said(b.effects, Level.CRITICAL), "one died, and is told once"


def test_a_fault_of_a_gpu_is_one_event() -> None:
    b = bench(partition("W1", 30.0, "g1"), partition("W2", 30.0, "g1"))
    b.servers = {n: s for n, s in b.servers.items() if n.endswith(".s")}
    effects = b.tick()
    assert len(of(Redirect, effects)) == 2
    loud = [s for s in of(Report, effects) if s.level is Level.CRITICAL]
    assert [s.subject for s in loud] == ["g0"]
    assert "a fault of the whole GPU" in loud[0].reason
    assert len(of(Report, effects)) == 1


def test_a_fault_of_a_gpu_accuses_no_request() -> None:
    b = bench(partition("W1", 30.0), partition("W2", 30.0))
    b.servers = {}
    b.answers = [Answer(b.now_s, 9.0, True, "W1", "", held=True, lost=True)]
    b.tick(5)
    assert not of(Refuse, b.effects)
    assert "may crash" not in said(b.effects, Level.CRITICAL)


def test_a_death_while_the_next_shadow_starts_is_no_fault_of_the_gpu() -> None:
    """The shadow is not there yet because it never was; the message has the reason of the death."""
    b = bench(partition())
    del b.servers["W1.a"]
    b.tick()
    while (starting := b.state.watches["W1"].standby) is None:
        b.tick()
    active = b.state.watches["W1"].active.server
    b.servers.pop(starting.server, None)
    b.servers[active] = ServerSeen(Health.GONE, reason="its container ended")
    loud = said(b.tick(), Level.CRITICAL)
    assert "crash (its container ended), and nothing stands by" in loud
    assert "a fault of the whole GPU" not in loud


def test_the_spare_share_goes_to_one_only() -> None:
    b = bench(partition("W1", 45.0), partition("W2", 45.0))
    effects = b.tick(10, late=["W1"])
    assert of(Redirect, effects)[0].partition == "W1"
    # W2's shadow no longer fits: it is replaced by one of W2's own share.
    assert ends(effects, "W2.s").ending is Ending.DRAINED
    assert {(e.partition, e.percent) for e in of(Launch, effects)} == {("W1", 55.0), ("W2", 45.0)}
    b.ready()
    b.tick(30)
    assert not of(Redirect, b.tick(60, late=["W2"]))
    assert "all there is" in said(b.effects, Level.CRITICAL)


def test_two_deaths_at_once_overlap_and_give_back() -> None:
    b = bench(partition("W1", 45.0), partition("W2", 45.0))
    del b.servers["W1.a"], b.servers["W2.a"]
    effects = b.tick()
    assert {r.partition for r in of(Redirect, effects)} == {"W1", "W2"}
    assert "shares overlap" in said(effects, Level.WARNING)
    for _ in range(60):
        b.tick()
        b.ready()
    back = of(Redirect, b.effects)[2:]
    assert [r.cause for r in back] == [Cause.SHARE, Cause.SHARE]
    assert [w.active.percent for w in b.state.watches.values()] == [45.0, 45.0], "as planned"


def test_a_crash_grows_no_share_and_costs_no_neighbour_its_shadow() -> None:
    b = bench(partition("W1", 45.0), partition("W2", 45.0))
    b.tick(round(Limits().loop_s / TICK_S) + 5)
    for _ in range(3):
        del b.servers[b.state.watches["W1"].active.server]
        effects = b.tick()
        assert [(e.server, e.percent) for e in of(Launch, effects)] == [
            (b.state.watches["W1"].standby.server, 45.0)  # type: ignore[union-attr]
        ]
        took_over = b.state.watches["W1"].active.server
        for _ in range(round(Limits().loop_s / TICK_S) + 60):
            b.tick()
            b.ready()
        assert b.state.watches["W1"].active.percent == 45.0
        assert b.state.watches["W1"].standby.percent == 55.0  # type: ignore[union-attr]
        assert b.state.watches["W1"].standby.server == took_over, "it stands by again"  # type: ignore[union-attr]
    assert "W2.s" in b.servers, "its own shadow"
    assert [r.cause for r in of(Redirect, b.effects)] == 3 * [Cause.CRASH, Cause.SHARE]


def test_a_shadow_that_lent_its_share_and_is_replaced_may_answer_what_it_has() -> None:
    b = bench(partition("W1"), partition("W2", 50.0))
    del b.servers["W1.a"]
    for _ in range(30):
        b.tick()
        b.ready()
    standby = b.state.watches["W1"].standby
    assert standby is not None
    assert standby.server == "W1.s", "it stands by again"
    effects = b.tick(20, late=["W2"])
    assert of(Redirect, effects)[0].partition == "W2", "so W1 has no room for it any more"
    assert ends(effects, "W1.s").ending is Ending.DRAINED


def test_no_server_that_drains_is_given_less_time_than_a_request_may_take() -> None:
    promise = replace(partition().promises[0], longest_ms=900_000.0)
    b = bench(replace(partition(), promises=(promise,)))
    assert ends(b.tick(10, late=["W1"])).patience_s >= 900.0


def test_a_server_that_is_slow_even_with_the_lent_share_gets_more() -> None:
    b = bench(partition("W1", 40.0))
    del b.servers["W1.a"]
    b.tick(20)
    assert b.state.watches["W1"].active.percent == 50.0
    b.tick(60, late=["W1"])
    b.ready()
    b.tick(20, late=["W1"])
    assert b.state.watches["W1"].active.percent == 60.0


def test_a_warm_shadow_is_loaded_to_take_a_lent_share_back() -> None:
    b = bench(replace(partition("W1", 40.0), policy=ShadowPolicy.WARM))
    del b.servers["W1.a"]
    b.tick(20)
    b.servers = {
        n: ServerSeen(Health.UNLOADED) if s.health is Health.STARTING else s for n, s in b.servers.items()
    }
    loads = of(Load, b.tick(3))
    assert loads
    b.servers[loads[0].server] = READY
    b.tick()
    assert b.state.watches["W1"].active.percent == 40.0


def test_promises_of_a_plan_count_requests_not_inferences() -> None:
    placement = Placement(
        "W1", "w1", "m", 80.0, 50.0, predicted=Prediction(execution_ms=12.0), client_batch=4
    )
    shadow = Shadow(ShadowPolicy.HOT, "v100-1", 10.0, 50.0)
    partition = Partition("W1", 40.0, (), (placement,), shadow=shadow)
    bare = replace(partition, id="W2", shadow=None)
    plan = Plan("joint", Rule.P99, "ours", (PlannedGpu("v100-0", "v100", (partition, bare)),))
    first, second = guarded_partitions(plan, NO_FLEET)
    assert first.promises == (Promise("w1", 50.0, 20.0, 12.0, inferences=4.0, model="m", client_batch=4),)
    assert (first.shadow_gpu, first.policy) == ("v100-1", ShadowPolicy.HOT)
    assert (second.policy, second.step_percent) == (ShadowPolicy.NONE, 0.0)


def shared_queue() -> GuardedPartition:
    """Two workloads of one model: 60 and 40 req/s in one queue, held to the stricter one's 50 ms."""
    strict = Placement("W1", "strict", "m", 60.0, 50.0, predicted=Prediction(execution_ms=12.0))
    loose = Placement(
        "W2", "loose", "m", 80.0, 200.0, predicted=Prediction(execution_ms=13.0), client_batch=2
    )
    shadow = Shadow(ShadowPolicy.HOT, "g0", 10.0, 50.0)
    partition = Partition("P", 40.0, (), (strict, loose), shadow=shadow)
    plan = Plan("joint", Rule.P99, "ours", (PlannedGpu("g0", "v100", (partition,)),))
    (found,) = guarded_partitions(plan, NO_FLEET)
    return found


def test_workloads_of_one_queue_are_promised_the_strictest_slo_at_their_whole_rate() -> None:
    planned = Promise(
        "loose",
        50.0,
        100.0,
        13.0,
        ("strict",),
        inferences=1.4,
        widest_slo_ms=200.0,
        model="m",
        client_batch=2,
    )
    assert shared_queue().promises == (planned,)
    assert shared_queue().endpoints == ("loose", "strict")


def test_whoever_is_late_in_a_queue_is_evidence_for_all_and_all_are_redirected_together() -> None:
    b = bench(shared_queue())
    # Every answer is the looser one's: 150 ms, which it alone would bear.
    effects = b.tick(10, late=["P"])
    assert [r.target for r in of(Redirect, effects)] == ["P.s"]
    assert "loose + strict: more than 1 % above 50 ms" in said(effects, Level.WARNING)
    routes = decide.routes(b.state, FleetSeen(b.now_s, (), b.servers))
    assert {e: r.members for e, r in routes.items()} == {"loose": ("P.s",), "strict": ("P.s",)}


def test_all_models_of_a_partition_are_redirected_together() -> None:
    """They are in one server: what makes one of them late moves the others too."""
    models = (ServedModel("m", 4), ServedModel("n", 2))
    placements = tuple(
        Placement(w, w, m.model, 50.0, 50.0, predicted=Prediction(execution_ms=12.0))
        for w, m in zip(("first", "second"), models, strict=True)
    )
    both = Partition("P", 40.0, models, placements, shadow=Shadow(ShadowPolicy.HOT, "g0", 10.0, 50.0))
    plan = Plan("by-hand", Rule.P99, "ours", (PlannedGpu("g0", "v100", (both,)),))
    b = bench(*guarded_partitions(plan, NO_FLEET))
    effects = b.tick(20, late=["P"], rate=50.0)
    assert [r.target for r in of(Redirect, effects)] == ["P.s"]
    routes = decide.routes(b.state, FleetSeen(b.now_s, (), b.servers))
    assert {e: r.members for e, r in routes.items()} == {"first": ("P.s",), "second": ("P.s",)}


def test_the_rate_of_a_queue_is_the_sum_of_its_workloads() -> None:
    b = bench(shared_queue())
    assert of(Redirect, b.tick(100, rate=100.0)) == []
    b.tick(40, rate=200.0)
    effects = b.tick(10, late=["P"], rate=200.0)
    assert of(Redirect, effects) == []
    assert "loose + strict: 200 req/s against 100 planned" in said(effects, Level.WARNING)


def test_of_a_long_queue_a_few_are_named() -> None:
    promise = Promise("a", 50.0, 100.0, aliases=("b", "c", "d", "e"))
    b = bench(GuardedPartition("P", "g0", 40.0, (promise,), ShadowPolicy.HOT, "g0", 10.0))
    assert "a + b + c + 2 more: more than 1 %" in said(b.tick(10, late=["P"]), Level.WARNING)


def test_the_state_that_breaks_an_invariant_is_caught() -> None:
    kept = (partition("W1", 60.0), partition("W2", 60.0))
    placed_servers = {w.id: (PlacedServer(f"{w.id}.a", w.gpu, w.percent),) for w in kept}
    with pytest.raises(AssertionError, match="overdrawn"):
        validate_state(decide.begin(kept, placed_servers, Limits()))
    twice = {w.id: (PlacedServer("same", w.gpu, 10.0),) for w in kept}
    with pytest.raises(AssertionError, match="has two places"):
        validate_state(decide.begin(kept, twice, Limits()))


def test_a_slow_server_that_a_contended_host_starves_is_not_left() -> None:
    b = bench(partition())
    b.host = HostSeen(waiting=0.9)
    b.servers["W1.a"] = ServerSeen(Health.READY, delays=Delays(starved=0.7, throttled=0.05))
    effects = b.tick(50, late=["W1"])
    assert not of(Redirect, effects)
    told = said(effects, Level.WARNING)
    assert told.count("other work has its core: a larger share is no faster") == 1
    assert "the host is contended" in told


def test_a_cut_share_is_left_within_a_second_though_the_host_is_contended_all_the_time() -> None:
    b = bench(partition())
    b.host = HostSeen(waiting=0.6)
    b.tick(50)
    moved = []
    for look in range(5):
        # Every third reading finds a server that waited longer, by chance.
        delays = Delays(0.3, 0.3) if look % 3 == 2 else Delays(0.05, 0.6)
        b.servers["W1.a"] = ServerSeen(Health.READY, delays=delays, inferences={"W1": 1.0})
        moved += of(Redirect, b.tick(late=["W1"], rate=30.0))
    assert [redirect.cause for redirect in moved] == [Cause.SLOW]


def test_a_server_slowed_by_half_is_left_though_it_waits_for_its_core_all_the_time() -> None:
    """It idles between batches, so it uses up its quota in few of the periods."""
    b = bench(partition())
    b.host = HostSeen(waiting=0.6)
    b.servers["W1.a"] = ServerSeen(Health.READY, delays=Delays(0.2, 0.15), inferences={"W1": 1.0})
    b.tick(50, took_ms=25.0)
    b.servers["W1.a"] = ServerSeen(Health.READY, delays=Delays(0.2, 0.4), inferences={"W1": 1.0})
    moved = [of(Redirect, b.tick(rate=60.0, took_ms=48.0)) for _ in range(10)]
    assert any(moved)


def test_a_contended_host_alone_moves_no_traffic() -> None:
    b = bench(partition())
    b.tick(50)
    b.host = HostSeen(waiting=0.9)
    for look in range(300):
        delays = Delays(0.6 if look % 7 == 0 else 0.85, 0.1)
        b.servers["W1.a"] = ServerSeen(Health.READY, delays=delays, inferences={"W1": 1.0})
        b.tick(late=["W1"], rate=40.0)
    assert not of(Redirect, b.effects)
    assert "the host is contended" in said(b.effects, Level.WARNING)


def test_late_answers_of_a_starved_server_leave_the_evidence_of_its_batches() -> None:
    b = bench(partition())
    b.tick(50)
    b.host = HostSeen(waiting=0.9)
    b.servers["W1.a"] = ServerSeen(Health.READY, delays=Delays(0.61, 0.2), inferences={"W1": 1.0})
    before = b.state.watches["W1"].queues
    while "the host is contended" not in said(b.tick(late=["W1"]), Level.WARNING):
        before = b.state.watches["W1"].queues
    (queue,) = b.state.watches["W1"].queues
    assert queue.batches.chart.score >= before[0].batches.chart.score


@pytest.mark.parametrize(
    ("waiting", "delays"), [(0.9, Delays(0.1, 0.6)), (0.1, Delays(0.7, 0.1)), (0.9, None)]
)
def test_a_server_at_its_quota_on_a_quiet_host_or_without_a_quota_is_left(
    waiting: float, delays: Delays | None
) -> None:
    b = bench(partition())
    b.host = HostSeen(waiting=waiting)
    b.servers["W1.a"] = ServerSeen(Health.READY, delays=delays)
    assert of(Redirect, b.tick(50, late=["W1"]))


def test_a_server_that_another_program_ends_is_left_and_drained() -> None:
    made = bench(partition())
    made.servers["W1.a"] = ServerSeen(Health.ENDING, reason="it is stopped")
    effects = made.tick()
    assert of(Redirect, effects) == [Redirect("W1", "W1.a", "W1.s", Cause.ENDING)]
    assert ends(effects).ending is Ending.DRAINED
    assert "it is stopped" in said(effects, Level.WARNING)
    assert made.state.watches["W1"].launches == Launches(), "no start has failed"


def test_one_without_a_shadow_serves_until_its_successor_is_ready() -> None:
    made = bench(replace(partition(), policy=ShadowPolicy.NONE, step_percent=0.0), standby=False)
    made.servers["W1.a"] = ServerSeen(Health.ENDING, reason="it is stopped")
    effects = made.tick(3)
    (launch,) = of(Launch, effects)
    assert launch.percent == 40.0
    assert not made.state.watches["W1"].down
    assert set(decide.routes(made.state, FleetSeen(made.now_s, (), made.servers))["W1"].members) == {"W1.a"}
    made.ready()
    effects = made.tick()
    assert of(Redirect, effects) == [Redirect("W1", "W1.a", launch.server, Cause.ENDING)]
    assert ends(effects).ending is Ending.DRAINED


@pytest.mark.parametrize(
    ("health", "ending"), [(Health.ENDING, Ending.DRAINED), (Health.PAUSED, Ending.HUNG)]
)
def test_a_shadow_that_another_program_stops_is_replaced_and_no_death(health: Health, ending: Ending) -> None:
    made = bench(partition())
    made.tick(60)  # it has stood by for long
    made.servers["W1.s"] = ServerSeen(health, reason="it is stopped")
    effects = made.tick()
    assert ends(effects, "W1.s").ending is ending
    assert len(of(Launch, effects)) == 1
    assert made.state.watches["W1"].died_s < 0.0


def test_a_paused_server_is_left_at_once_and_has_a_moment_for_what_it_holds() -> None:
    made = bench(partition())
    made.servers["W1.a"] = ServerSeen(Health.PAUSED, reason="it is paused")
    effects = made.tick()
    assert of(Redirect, effects) == [Redirect("W1", "W1.a", "W1.s", Cause.HANG)]
    (ending,) = of(DrainAndStop, effects)
    assert (ending.server, ending.ending) == ("W1.a", Ending.HUNG)


def sharing(percent: float = 20.0) -> Bench:
    """Three partitions with one shadow of 40 %."""
    kept = tuple(
        replace(partition(name, percent), policy=ShadowPolicy.SHARED, shared=("standby", 40.0))
        for name in ("W1", "W2", "W3")
    )
    standby = PlacedServer("standby.0", "g0", 40.0, shared=True)
    placed = {one.id: (PlacedServer(f"{one.id}.a", "g0", percent), standby) for one in kept}
    servers = {name: READY for name in ("standby.0", *(f"{one.id}.a" for one in kept))}
    made = Bench(decide.begin(kept, placed, Limits()), servers)
    made.tick()
    return made


def standbys_of(fleet: Bench) -> list[str | None]:
    return [w.standby.server if w.standby else None for w in fleet.state.watches.values()]


def test_a_shared_shadow_serves_one_partition_until_that_has_a_server_and_stands_by_again() -> None:
    fleet = sharing()
    fleet.tick(60)
    del fleet.servers["W1.a"]
    effects = fleet.tick()
    (moved,), (launched,) = of(Redirect, effects), of(Launch, effects)
    assert (moved.partition, moved.target) == ("W1", "standby.0")
    assert (launched.partition, launched.percent) == ("W1", 20.0), "of its own share after a death"
    assert standbys_of(fleet) == [launched.server, "standby.0", "standby.0"]
    fleet.ready()
    later = fleet.tick(20)
    assert [(m.cause, m.target) for m in of(Redirect, later)] == [(Cause.SHARE, launched.server)]
    assert of(DrainAndStop, later) == []
    assert standbys_of(fleet) == ["standby.0"] * 3


def test_it_cures_one_slow_partition_at_a_time_and_the_other_gets_a_server_of_its_own() -> None:
    fleet = sharing()
    effects = fleet.tick(20, late=("W1", "W2"))
    assert [m.target for m in of(Redirect, effects)] == ["standby.0"]
    assert sorted(one.partition for one in of(Launch, effects)) == ["W1", "W2"]
    assert "standby.0" not in {stop.server for stop in of(DrainAndStop, effects)}


def test_it_covers_two_deaths_at_once() -> None:
    fleet = sharing()
    del fleet.servers["W1.a"], fleet.servers["W2.a"]
    assert [m.target for m in of(Redirect, fleet.tick())] == ["standby.0"] * 2


def test_its_share_counts_once_where_it_covers_two() -> None:
    fleet = sharing(30.0)
    del fleet.servers["W1.a"], fleet.servers["W2.a"]
    assert "overlap" not in said(fleet.tick(), Level.WARNING)


def test_a_partition_whose_own_server_still_starts_is_served_by_the_next_shared_one() -> None:
    fleet = sharing()
    fleet.tick(60)
    del fleet.servers["W1.a"]
    own = of(Launch, fleet.tick())[0].server
    del fleet.servers["standby.0"]
    (later,) = of(Launch, fleet.tick())
    assert fleet.phase() is Phase.DOWN
    fleet.servers[later.server] = READY
    assert [m.target for m in of(Redirect, fleet.tick())] == [later.server]
    assert standbys_of(fleet) == [own, later.server, later.server], "its own goes on starting"
    fleet.ready()
    assert [m.target for m in of(Redirect, fleet.tick(20))] == [own]


def test_a_partition_that_waits_for_a_larger_server_of_its_own_is_covered_meanwhile() -> None:
    fleet = sharing()
    (launched,) = (e for e in of(Launch, fleet.tick(20, late=("W1", "W2"))) if e.partition == "W2")
    fleet.tick(5)
    del fleet.servers["W2.a"]
    assert [m.target for m in of(Redirect, fleet.tick())] == ["standby.0"]
    fleet.ready()
    later = [m.target for m in of(Redirect, fleet.tick(20)) if m.partition == "W2"]
    assert later == [launched.server]


def test_one_that_hangs_for_the_partition_that_it_serves_is_no_successor_of_itself() -> None:
    fleet = sharing()
    fleet.tick(60)
    del fleet.servers["W1.a"]
    fleet.tick(20)
    fleet.servers["standby.0"] = replace(READY, in_flight=10)
    fleet.state = replace(
        fleet.state, watches={p: replace(w, answered_s=0.0) for p, w in fleet.state.watches.items()}
    )
    assert of(Redirect, fleet.tick(20, rate=0.0)) == []
    assert fleet.phase() is Phase.DOWN


def test_one_that_another_program_ends_is_left_for_it_while_its_own_starts() -> None:
    fleet = sharing()
    fleet.tick(20, late=("W1", "W2"))
    fleet.servers["W2.a"] = ServerSeen(Health.ENDING)
    assert [m.target for m in of(Redirect, fleet.tick())] == ["standby.0"]


def test_a_partition_that_grew_has_its_share_again_after_a_death() -> None:
    fleet = sharing()
    fleet.tick(60)
    grown = replace(fleet.state.watches["W1"], active=PlacedServer("W1.a", "g0", 50.0, since_s=0.0))
    fleet.state = replace(fleet.state, watches={**fleet.state.watches, "W1": grown})
    del fleet.servers["W1.a"]
    (launched,) = of(Launch, fleet.tick())
    assert launched.percent == 50.0
    fleet.ready()
    assert [m.target for m in of(Redirect, fleet.tick(20))] == [launched.server]
    assert fleet.state.watches["W1"].share.percent == 50.0


def test_where_it_dies_it_is_launched_once_for_all() -> None:
    fleet = sharing()
    fleet.tick(60)
    del fleet.servers["standby.0"]
    effects = fleet.tick()
    (launched,) = of(Launch, effects)
    assert (launched.partition, launched.percent) == ("standby", 40.0)
    assert standbys_of(fleet) == [launched.server] * 3
    fleet.ready()
    assert of(Launch, fleet.tick(20)) == []
