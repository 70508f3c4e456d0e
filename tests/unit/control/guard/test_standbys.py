"""Starts of servers, and shadows that lend a share, are warm, or stand by for several partitions."""

from dataclasses import replace

import pytest
from guard_bench import ALONE, LIMITS, READY, STARTING, TICK_S, bench, ends, of, partition, sharing, targets

from controlplane.control.guard import decide
from controlplane.control.guard.effects import (
    Cause,
    DrainAndStop,
    Ending,
    Launch,
    Load,
    OpenBreaker,
    Redirect,
    Refuse,
    Report,
)
from controlplane.control.guard.standbys import is_awaited
from controlplane.control.guard.state import GuardedPartition, Launches, Phase, PlacedServer, Share
from controlplane.domain.observation import Answer, Health, Level, ServerSeen
from controlplane.domain.workload import ShadowPolicy


@pytest.mark.parametrize("trouble", ["dead", "impaired", "ending", "slow", "not started yet", "none"])
def test_a_start_is_awaited_where_nothing_serves_its_requests_well(trouble: str) -> None:
    b = bench(standby=False)
    match trouble:
        case "dead":
            del b.servers["W1.a"]
        case "impaired" | "ending":
            b.servers["W1.a"] = ServerSeen(Health(trouble))
        case "not started yet":  # as a new controller finds a partition whose only server loads
            b.state = decide.begin((partition(),), {"W1": (PlacedServer("W1.a", "g0", 50.0),)}, LIMITS)
            b.servers["W1.a"] = STARTING
    b.tick(10, late=["W1"] if trouble == "slow" else [])
    assert is_awaited(b.state.watches["W1"]) == (trouble != "none")
    assert (b.phase() is Phase.DOWN) == (trouble == "dead")
    b.ready()
    b.tick(2)
    assert not is_awaited(b.state.watches["W1"])


@pytest.mark.parametrize(
    ("kept", "lives_s", "opens", "longest_s"),
    [
        (partition(), LIMITS.loop_s + 1.0, False, 0.0),
        # In a loop the breaker is open for as long as the last one lived.
        (partition(), 20.0, True, 20.0),
        (ALONE, 20.0, True, 20.0),
        (partition(), 0.2, True, LIMITS.breaker_s),
        (ALONE, 0.2, True, LIMITS.back_off_max_s),
    ],
)
def test_what_dies_again_and_again_is_started_ever_more_rarely(
    kept: GuardedPartition, lives_s: float, opens: bool, longest_s: float
) -> None:
    b = bench(kept)
    waited_s = []
    for _ in range(LIMITS.failures):
        b.tick(round(lives_s / TICK_S))
        watch = b.state.watches["W1"]
        del b.servers[watch.standby.server if watch.standby else watch.active.server]
        died_s = b.now_s
        while not of(Launch, b.tick()):
            assert b.now_s - died_s <= LIMITS.breaker_s + 1.0
        waited_s.append(round(b.now_s - died_s, 1))
        b.ready()
        b.tick()
    assert waited_s == sorted(waited_s)
    assert waited_s[-1] == pytest.approx(longest_s, abs=1.0)
    assert len(of(OpenBreaker, b.effects)) == opens
    b.tick(round(LIMITS.loop_s / TICK_S) + 5)
    assert b.state.watches["W1"].launches == Launches(), "proven"


def test_a_shadow_that_cannot_start_keeps_no_successor_of_a_dead_server_waiting() -> None:
    b = bench(standby=False)
    for _ in range(300):
        b.ready(ServerSeen(Health.GONE, reason="out of memory"))
        b.tick()
    launched = [one.attempt for one in of(Launch, b.effects)]
    assert launched == sorted(launched)
    assert of(OpenBreaker, b.effects)
    assert "out of memory" in b.said()
    del b.servers["W1.a"]
    assert of(Launch, b.tick()), "on the dead server's own share, at once"


@pytest.mark.parametrize("apart", [0, 5, 40])
def test_two_that_die_shortly_after_each_other_may_have_had_the_same_request(apart: int) -> None:
    b = bench(partition(), partition("W2"))
    del b.servers["W1.a"]
    b.tick(apart)
    b.servers.pop(b.active() if apart else "W1.s")
    b.tick()
    assert ("may crash every server" in b.said(Level.CRITICAL)) is (apart < 40)
    assert "a fault of the whole GPU" not in b.said(Level.CRITICAL)


def test_a_fault_of_a_gpu_is_one_event_and_accuses_no_request() -> None:
    kept = tuple(replace(partition(name, 30.0), shadow_gpu="g1") for name in ("W1", "W2"))
    b = bench(*kept)
    b.servers = {name: seen for name, seen in b.servers.items() if name.endswith(".s")}
    b.answers = [Answer(b.now_s, 9.0, True, "W1", "", held=True, lost=True)]
    effects = b.tick()
    assert len(of(Redirect, effects)) == 2
    assert [(one.level, one.subject) for one in of(Report, effects)] == [(Level.CRITICAL, "g0")]
    assert of(Refuse, effects) == []
    assert {watch.share.gpu for watch in b.state.watches.values()} == {"g1"}, "nothing is owned on a lost GPU"


def test_a_death_while_the_next_shadow_starts_is_no_fault_of_the_gpu() -> None:
    """The shadow is not there yet because it never was; the message has the reason of the death."""
    b = bench()
    del b.servers["W1.a"]
    while b.standbys() == [None] or b.active() == "W1.a":
        b.tick()
    b.servers = {b.active(): ServerSeen(Health.GONE, reason="its container ended")}
    b.tick()
    assert "its container ended" in b.said(Level.CRITICAL)
    assert "a fault of the whole GPU" not in b.said(Level.CRITICAL)


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
    assert "all there is" in b.said(Level.CRITICAL)


def test_a_shadow_lends_its_share_after_a_death_and_stands_by_again() -> None:
    b = bench(partition("W1", 45.0), partition("W2", 45.0))
    del b.servers["W1.a"], b.servers["W2.a"]
    b.tick()
    assert b.moved() == [Cause.CRASH] * 2
    assert "shares overlap" in b.said()
    b.rest(12.0)
    assert b.moved()[2:] == [Cause.SHARE] * 2
    assert [w.active.percent for w in b.state.watches.values()] == [45.0, 45.0]
    assert b.standbys() == ["W1.s", "W2.s"]
    effects = b.tick(20, late=["W2"])
    assert ends(effects, "W1.s").ending is Ending.DRAINED, "it may answer what it has"


def test_a_share_stays_where_the_server_died_while_a_shadow_elsewhere_serves() -> None:
    b = bench(replace(partition(), shadow_gpu="g1"))
    del b.servers["W1.a"]
    b.tick()
    assert (b.active(), b.state.watches["W1"].share) == ("W1.s", Share("g0", 40.0))


def test_a_server_that_is_slow_even_with_the_lent_share_gets_more() -> None:
    b = bench()
    del b.servers["W1.a"]
    b.tick(20)
    assert b.state.watches["W1"].active.percent == 50.0
    b.tick(60, late=["W1"])
    b.ready()
    b.tick(20, late=["W1"])
    assert b.state.watches["W1"].active.percent == 60.0


def test_a_warm_shadow_is_loaded_when_it_is_needed_and_to_take_a_lent_share_back() -> None:
    b = bench(replace(partition(), policy=ShadowPolicy.WARM))
    b.servers["W1.s"] = ServerSeen(Health.UNLOADED)
    b.tick()
    del b.servers["W1.a"]
    assert of(Load, b.tick()) == [Load("W1.s")]
    b.servers["W1.s"] = READY
    assert targets(b.tick(20)) == ["W1.s"]
    assert "may crash every server" not in b.said(Level.CRITICAL), "one died, and is reported once"
    b.ready(ServerSeen(Health.UNLOADED))
    loads = of(Load, b.tick(3))
    b.servers[loads[0].server] = READY
    b.tick()
    assert b.state.watches["W1"].active.percent == 40.0


def test_no_server_that_drains_is_given_less_time_than_a_request_may_take() -> None:
    assert ends(bench(partition(longest_ms=900_000.0)).tick(10, late=["W1"])).patience_s >= 900.0


def test_a_shared_shadow_serves_one_partition_until_that_has_a_server_and_stands_by_again() -> None:
    b = sharing()
    del b.servers["W1.a"]
    effects = b.tick()
    (launched,) = of(Launch, effects)
    assert targets(effects) == ["standby.0"]
    assert (launched.partition, launched.percent) == ("W1", 20.0), "of its own share after a death"
    assert b.standbys() == [launched.server, "standby.0", "standby.0"]
    b.ready()
    later = b.tick(20)
    assert targets(later) == [launched.server]
    assert of(DrainAndStop, later) == []
    assert b.standbys() == ["standby.0"] * 3


def test_a_shared_shadow_cures_one_at_a_time_and_covers_the_other_until_that_has_its_own() -> None:
    b = sharing()
    effects = b.tick(20, late=("W1", "W2"))
    assert targets(effects) == ["standby.0"]
    launched = {one.partition: one.server for one in of(Launch, effects)}
    assert launched.keys() == {"W1", "W2"}
    b.tick(5)
    b.servers["W2.a"] = ServerSeen(Health.ENDING)
    assert targets(b.tick()) == ["standby.0"]
    b.ready()
    assert launched["W2"] in targets(b.tick(20))


@pytest.mark.parametrize("percent", [20.0, 30.0])
def test_a_shared_shadow_covers_two_deaths_and_its_share_counts_once(percent: float) -> None:
    b = sharing(percent)
    del b.servers["W1.a"], b.servers["W2.a"]
    assert targets(b.tick()) == ["standby.0"] * 2
    assert "overlap" not in b.said()


def test_a_shared_shadow_that_dies_is_launched_once_for_all_and_covers_what_still_starts() -> None:
    b = sharing()
    del b.servers["W1.a"]
    (own,) = of(Launch, b.tick())
    del b.servers["standby.0"]
    (later,) = of(Launch, b.tick())
    assert (later.partition, later.percent) == ("standby", 40.0)
    assert b.phase() is Phase.DOWN
    b.servers[later.server] = READY
    assert targets(b.tick()) == [later.server]
    assert b.standbys() == [own.server, later.server, later.server], "its own goes on starting"
    b.ready()
    assert targets(b.tick(20)) == [own.server]
    assert of(Launch, b.tick(20)) == []


def test_one_that_hangs_for_the_partition_that_it_serves_is_no_successor_of_itself() -> None:
    b = sharing()
    del b.servers["W1.a"]
    b.tick(20)
    b.servers["standby.0"] = replace(READY, in_flight=10)
    watches = {p: replace(w, answered_s=0.0) for p, w in b.state.watches.items()}
    b.state = replace(b.state, watches=watches)
    assert of(Redirect, b.tick(20, rate=0.0)) == []
    assert b.phase() is Phase.DOWN
