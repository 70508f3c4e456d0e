"""Whatever arrives, is proposed, fails or is killed: what load control promises."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from load_invariants import validate_state

from controlplane.control.autoscaler.decisions import forecast, tick
from controlplane.control.autoscaler.state import (
    Apply,
    Direction,
    FollowedWorkload,
    Kind,
    LoadLimits,
    LoadSeen,
    Proposal,
    Propose,
    begin,
    resumed,
)
from controlplane.files.following.load_state import read_load, write_load

LIMITS = LoadLimits(settle_s=6.0, dwell_s=40.0)
COUNTS = st.integers(0, 60)
SECOND = st.one_of(st.none(), st.tuples(COUNTS, COUNTS))
STEADY, STEADY_S, WELL_KNOWN = (60, 60), 90, 50.0
"""Requests in each second of the end, its length, and a rate that is surely known by then."""
STRETCHES = st.lists(st.tuples(SECOND, st.integers(1, 25)), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(
    stretches=STRETCHES,
    kills=st.dictionaries(st.integers(0, 200), st.booleans(), max_size=4),
    failures=st.sets(st.integers(1, 12), max_size=3),
    most=st.floats(20.0, 80.0),
)
def test_changes_keep_their_distance_and_known_rates_stay_planned(
    stretches: list[tuple[tuple[int, int] | None, int]],
    kills: dict[int, bool],
    failures: set[int],
    most: float,
) -> None:
    """`kills`: at which seconds, and whether an apply under way took effect all the same."""
    planned = (30.0, 10.0)
    state = begin(_workloads(planned), LIMITS, 0.0)
    asked: Propose | None = None
    due: tuple[float, Proposal] | None = None
    changed_s, now_s, crowded = 0.0, 0.0, False
    random = [counts for counts, length in stretches for _ in range(length)]
    seconds = [*random, *[STEADY] * STEADY_S]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "load.json")
        for second, counts in enumerate(seconds):
            now_s += 1.0
            if second in kills and second < len(random):
                if state.applying and kills[second]:
                    assert due is not None
                    planned, changed_s = due[1].rates_rps, now_s
                write_load(path, state)
                found = read_load(path)
                assert found is not None
                state, asked, due = resumed(found), None, None
            proposal = due[1] if due is not None and now_s >= due[0] and not state.applying else None
            failed = None
            if state.applying:
                assert asked is not None
                assert due is not None
                if asked.number in failures:
                    failed = "the disk is full"
                else:
                    planned = due[1].rates_rps
                    if asked.direction is Direction.DOWN:
                        assert now_s >= changed_s + LIMITS.dwell_s
                    elif now_s < changed_s + LIMITS.settle_s:
                        assert crowded, "only what arrives already is planned for before a change has settled"
                    changed_s = now_s
                asked, due = None, None
            arrivals = None if counts is None else (float(counts[0]), float(counts[1]))
            before = planned
            state, effects = tick(
                state, LoadSeen(now_s, (arrivals,), _workloads(planned), proposal, failed=failed)
            )
            validate_state(state)
            for effect in effects:
                if isinstance(effect, Propose):
                    assert asked is None, "one question at a time"
                    crowded = bool((forecast(state).present > planned).any())
                    asked, due = effect, (now_s + 2.0, _proposal(effect, before, most))
                if isinstance(effect, Apply):
                    assert asked is not None
                    assert effect.number == asked.number
                    if asked.direction is Direction.UP:
                        assert all(map(_at_least, due[1].rates_rps if due else (), planned))
            if state.under_way is None:
                asked, due = None, None
    if not failures:
        assert all(rate >= min(most, WELL_KNOWN) for rate in planned), "it goes on, whatever was before"


def _workloads(planned: tuple[float, ...]) -> tuple[FollowedWorkload, ...]:
    return tuple(FollowedWorkload(f"W{i}", f"W{i}", rate) for i, rate in enumerate(planned))


def _proposal(asked: Propose, planned: tuple[float, ...], most: float) -> Proposal:
    """Of a strategy that holds at most a rate, and never less than runs now."""
    rates = tuple(min(rate, max(most, now)) for rate, now in zip(asked.rates_rps, planned, strict=True))
    return Proposal(asked.number, Kind.PLAN, rates, sum(planned), sum(rates), 0.1)


def _at_least(rate: float, planned: float) -> bool:
    return rate >= planned - 1e-9


@settings(max_examples=25, deadline=None)
@given(counts=st.lists(SECOND, max_size=150))
def test_a_state_survives_its_file(counts: list[tuple[int, int] | None]) -> None:
    state, workloads = begin(_workloads((30.0, 10.0)), LIMITS, 0.0), _workloads((30.0, 10.0))
    arrivals = tuple(None if c is None else (float(c[0]), float(c[1])) for c in counts)
    for at, second in enumerate(arrivals):
        state, _ = tick(state, LoadSeen(float(at), (second,), workloads))
    state = resumed(state)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "load.json")
        write_load(path, state)
        again = read_load(path)
    assert again is not None
    for second in (5, 5, 50, 50, 50, 50, 50):
        seen = LoadSeen(200.0 + second, ((float(second), 1.0),), workloads)
        (state, effects), (again, same) = tick(state, seen), tick(again, seen)
        assert effects == same
