"""Decisions about plans under a changing load."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from load_invariants import validate_state

from controlplane.control.autoscaler.decisions import forecast, tick
from controlplane.control.autoscaler.state import (
    Apply,
    Direction,
    Effect,
    FollowedWorkload,
    Kind,
    LoadLimits,
    LoadSeen,
    Proposal,
    Propose,
    Unheld,
    begin,
)
from controlplane.control.guard.effects import Report
from controlplane.domain.observation import Level

LIMITS = LoadLimits(dwell_s=100.0)


@dataclass
class Run:
    """A fleet in simulated time: a plan costs one GPU for each 100/s that it is for, started ones half."""

    planned: tuple[float, ...]
    limits: LoadLimits = LIMITS
    most_rps: float = np.inf
    took_s: float = 5.0
    now_s: float = 0.0
    effects: list[tuple[float, Effect]] = field(default_factory=list)
    changes: list[tuple[float, Direction, tuple[float, ...]]] = field(default_factory=list)
    refuses: str | None = None
    kind: Kind = Kind.PLAN
    error: float = 0.0
    """Of the plan's execution times, until another plan is applied."""

    def __post_init__(self) -> None:
        self.state = begin(self.workloads, self.limits, 0.0)
        self._ask: Propose | None = None
        self._due_s = np.inf
        self._failed: str | None = None

    @property
    def workloads(self) -> tuple[FollowedWorkload, ...]:
        return tuple(FollowedWorkload(f"W{i}", f"W{i}", rate) for i, rate in enumerate(self.planned))

    def second(self, *counts: float, missing: bool = False) -> None:
        self.now_s += 1.0
        proposal, applied = None, False
        if self._ask is not None and not self.state.applying and self.now_s >= self._due_s:
            proposal = self._proposed(self._ask)
        elif self.state.applying and self.now_s >= self._due_s:
            assert self._ask is not None
            self.planned = self._proposed(self._ask).rates_rps
            self.changes.append((self.now_s, self._ask.direction, self.planned))
            self._ask, self.error, applied = None, 0.0, True
        seen = LoadSeen(
            self.now_s, (None if missing else counts,), self.workloads, proposal, applied, self._failed
        )
        self._failed = None
        self.state, effects = tick(self.state, seen)
        validate_state(self.state)
        for effect in effects:
            self.effects.append((self.now_s, effect))
            if isinstance(effect, Propose):
                self._ask, self._due_s = effect, self.now_s + 2.0
            if isinstance(effect, Apply):
                self._due_s = self.now_s + self.took_s
                if self.refuses is not None:
                    self._failed, self._ask, self._due_s = self.refuses, None, np.inf

    def look(
        self, proposal: Proposal | None = None, plan_hash: str = "before", *, follow: bool = True, **seen: Any
    ) -> tuple[Effect, ...]:
        """Observe this between two seconds."""
        observed = LoadSeen(self.now_s, (), self.workloads, proposal, plan_hash=plan_hash, **seen)
        self.state, effects = tick(self.state, observed, follow=follow)
        return effects

    def told(self) -> list[Report]:
        return [effect for _, effect in self.effects if isinstance(effect, Report)]

    def asked(self) -> list[Direction]:
        return [effect.direction for _, effect in self.effects if isinstance(effect, Propose)]

    def _proposed(self, asked: Propose) -> Proposal:
        rates = tuple(min(rate, self.most_rps) for rate in asked.rates_rps)
        unheld = tuple(
            Unheld(w.name, got, "no GPU is left")
            for w, got, want in zip(self.workloads, rates, asked.rates_rps, strict=True)
            if got < want
        )
        before, after = (sum(np.ceil(r / 100.0) for r in all_) for all_ in (self.planned, rates))
        moved = abs(after - before) / 2.0
        return Proposal(asked.number, self.kind, rates, before, after, moved, unheld, error=self.error)

    def poisson(self, seconds: int, *rates: float, seed: int = 1) -> None:
        random = np.random.default_rng(seed)
        for _ in range(seconds):
            self.second(*random.poisson(rates).astype(np.float64).tolist())


def test_a_doubled_rate_is_planned_for_within_twenty_seconds() -> None:
    run = Run((100.0, 50.0))
    run.poisson(60, 90.0, 40.0)
    run.poisson(20, 180.0, 40.0)
    ((at_s, direction, rates),) = run.changes
    assert (direction, at_s <= 80.0) == (Direction.UP, True)
    assert rates[0] >= 180.0
    assert rates[1] == 50.0, "an increase takes from no workload"


@pytest.mark.parametrize(("workloads", "more"), [(3, ""), (5, "; and 2 more workloads")])
def test_a_reason_names_three_workloads_and_counts_the_others(workloads: int, more: str) -> None:
    run = Run((100.0,) * workloads)
    run.poisson(60, *(90.0,) * workloads)
    for _ in range(20):
        run.second(*(250.0,) * workloads)
    reason = next(effect.reason for _, effect in run.effects if isinstance(effect, Propose))
    assert reason.count("/s planned") == 3
    assert reason.endswith(f"/s planned{more}")


def test_ten_minutes_of_a_noisy_rate_at_a_threshold_move_at_most_once() -> None:
    for seed in range(6):
        run = Run((100.0,))
        run.poisson(600, 100.0, seed=seed)
        assert len(run.changes) <= 1


def test_an_overload_right_after_a_change_does_not_wait_until_it_has_settled() -> None:
    run = Run((100.0,), limits=LoadLimits(settle_s=60.0))
    run.poisson(90, 90.0)
    run.poisson(16, 180.0)
    assert len(run.changes) == 1
    run.poisson(16, 400.0)
    (_, (at_s, direction, rates)) = run.changes
    assert (direction, at_s <= 122.0) == (Direction.UP, True)
    assert rates[0] >= 380.0


def test_bursts_are_planned_for() -> None:
    random = np.random.default_rng(3)
    planned = []
    for group in (1.0, 4.0):
        run = Run((150.0,))
        run.poisson(5, 100.0)
        for _ in range(400):
            run.second(group * float(random.poisson(145.0 / group)))
        planned.append(forecast(run.state).upper[0])
    assert planned[0] < 160.0
    assert 170.0 < planned[1] < 200.0


def test_bursts_that_the_plan_holds_are_not_counted_twice() -> None:
    random, upper = np.random.default_rng(3), []
    for dispersion in (1.0, 8.0):
        workloads = (FollowedWorkload("W", "W", 150.0, dispersion=dispersion),)
        state = begin(workloads, LIMITS, 0.0)
        for second in range(400):
            arrivals = (4.0 * float(random.poisson(145.0 / 4.0)),)
            state, _ = tick(state, LoadSeen(float(second + 1), (arrivals,), workloads), follow=False)
        found = forecast(state)
        upper.append((found.upper[0], found.bursts[0]))
    assert upper[0][1] > 15.0
    assert upper[1][1] == 0.0
    assert upper[0][0] - upper[0][1] == pytest.approx(upper[1][0], rel=0.05)


def test_a_decrease_waits_for_a_dwell_without_doubt() -> None:
    run = Run((400.0,))
    run.poisson(90, 90.0)
    run.poisson(10, 350.0)
    run.poisson(95, 90.0)
    assert run.changes == []
    run.poisson(60, 90.0)
    ((_, direction, rates),) = run.changes
    assert direction is Direction.DOWN
    assert rates[0] < 200.0


def test_looks_that_come_late_end_no_dwell() -> None:
    workloads = (FollowedWorkload("W", "W", 400.0),)
    state = begin(workloads, LoadLimits(dwell_s=20.0), 0.0)
    for look in range(1, 40):
        state, effects = tick(state, LoadSeen(1.2 * look, ((90.0,),), workloads))
        if effects:
            break
    (asked,) = effects
    assert isinstance(asked, Propose)
    assert asked.direction is Direction.DOWN


def test_a_fall_is_followed_after_a_dwell_whatever_the_minutes_before_it_brought() -> None:
    run = Run((200.0,), limits=LoadLimits(dwell_s=20.0))
    run.poisson(190, 180.0)
    run.poisson(45, 40.0)
    ((at_s, direction, rates),) = run.changes
    assert (direction, at_s > 210.0) == (Direction.DOWN, True)
    assert rates[0] < 60.0


def test_traffic_that_pauses_for_most_of_each_dwell_is_not_scaled_away() -> None:
    run = Run((200.0,))
    for _ in range(8):
        run.poisson(85, 5.0)
        run.poisson(15, 190.0)
    assert run.changes == []


def test_unseen_seconds_scale_nothing_down() -> None:
    run = Run((400.0,))
    for _ in range(400):
        run.second(missing=True)
    assert run.asked() == [Direction.REVIEW]
    assert run.changes == []


def test_a_plan_of_the_same_cost_is_no_reason_to_move() -> None:
    run = Run((190.0,))
    run.poisson(150, 120.0)
    assert run.changes == []
    assert set(run.asked()) == {Direction.DOWN}
    assert all(isinstance(effect, Propose) for _, effect in run.effects)


def test_what_no_plan_holds_is_reported_once_and_asked_for_again_only_where_more_comes() -> None:
    run = Run((100.0,), most_rps=150.0)
    run.poisson(100, 200.0)
    assert [rates for _, _, rates in run.changes] == [(150.0,)]
    (warning,) = run.told()
    assert "no GPU is left; planned for 150/s instead" in warning.reason
    run.poisson(40, 300.0)
    assert len(run.told()) == 2


def test_a_plan_that_cannot_be_applied_is_not_tried_again_and_again() -> None:
    run = Run((100.0,), refuses="port 8000 is taken")
    run.poisson(100, 200.0)
    (told,) = run.told()
    assert told.reason.endswith("port 8000 is taken")


def test_a_plan_by_hand_settles_first() -> None:
    run = Run((100.0,))
    run.poisson(30, 90.0)
    run.planned = (180.0,)
    run.poisson(10, 180.0)
    assert run.effects == []
    assert run.state.changed_s == 31.0


def test_the_trend_of_minutes_is_planned_for_ahead() -> None:
    run = Run((360.0,), limits=LoadLimits(dwell_s=600.0))
    random = np.random.default_rng(4)
    for second in range(2400):
        run.second(float(random.poisson(300.0 + second / 10.0)))
    rates = [rates[0] for _, _, rates in run.changes]
    assert 2 <= len(rates) <= 4, "from 360 to 540/s in steps that last"
    assert rates[0] > 400.0


def test_client_batches_count_inferences() -> None:
    state = begin((FollowedWorkload("W", "W", 80.0, client_batch=4),), LIMITS, 0.0)
    for second in range(1, 40):
        workloads = state.workloads
        state, _ = tick(state, LoadSeen(float(second), ((20.0,),), workloads))
    assert forecast(state).level[0] == pytest.approx(80.0)


def test_what_was_learned_of_workloads_that_stay_is_kept() -> None:
    run = Run((100.0, 50.0))
    run.poisson(60, 90.0, 40.0)
    other = (replace(run.workloads[1], planned_rps=70.0), FollowedWorkload("new", "new", 10.0))
    state, _ = tick(run.state, LoadSeen(61.0, (), other))
    found = forecast(state)
    assert found.level[0] == pytest.approx(40.0, rel=0.1)
    assert np.isnan(found.level[1])


def test_a_rise_of_the_day_before_is_planned_for_ahead() -> None:
    limits = LoadLimits(dwell_s=100.0, day_s=960.0)
    workloads = (FollowedWorkload("W", "W", 400.0),)
    state, found = begin(workloads, limits, 0.0), []
    random = np.random.default_rng(5)
    for second in range(960 + 480):
        rate = 200.0 if second % 960 >= 500 else 100.0
        seen = LoadSeen(float(second + 1), ((float(random.poisson(rate)),),), workloads)
        state, _ = tick(state, seen, follow=False)
        found.append(forecast(state).upper[0])
    assert max(found[300:480]) < 150.0, "nothing is known on the first day"
    assert found[960 + 470] > 180.0, "the rise of the day before comes within the dwell"


@pytest.mark.parametrize(("lasted_s", "applied"), [(100.0, False), (400.0, True)])
def test_a_cheaper_plan_saves_more_than_it_moves_unless_the_plan_lasts(
    lasted_s: float, applied: bool
) -> None:
    run = Run((400.0,))
    run.poisson(60, 90.0)
    asked = Propose(1, Direction.DOWN, (300.0,), "less")
    run.state = replace(run.state, changed_s=run.now_s - lasted_s, under_way=asked, number=1)
    proposal = Proposal(1, Kind.PLAN, (400.0,), cost_before=4.0, cost_after=3.0, moved_cost=2.9)
    assert any(isinstance(effect, Apply) for effect in run.look(proposal, "")) is applied


def asking(direction: Direction = Direction.UP) -> Run:
    """A fleet with a search under way for twice its rate."""
    run = Run((100.0,))
    run.poisson(60, 90.0)
    asked = Propose(1, direction, (200.0,), "more")
    run.state = replace(run.state, under_way=asked, number=1, plan_hash="before")
    return run


FOUND = Proposal(1, Kind.PLAN, (200.0,), made_from="before")


@pytest.mark.parametrize("proposal", [None, FOUND])
def test_a_search_is_dropped_where_the_load_is_not_followed_any_more(proposal: Proposal | None) -> None:
    run = asking()
    assert (run.look(proposal, follow=False), run.state.under_way) == ((), None)


def test_an_apply_ends_even_where_the_load_is_not_followed_any_more() -> None:
    run = asking()
    run.state = replace(run.state, applying=True)
    run.look(follow=False)
    assert run.state.applying
    run.look(applied=True, follow=False)
    assert (run.state.under_way, run.state.applying) == (None, False)


def test_another_plan_for_the_same_rates_drops_what_was_under_way() -> None:
    run = asking()
    assert (run.look(FOUND, "by hand"), run.state.under_way, run.state.changed_s) == ((), None, run.now_s)
    assert run.state.seconds.stretch[0] > 50, "what was learned of the workload is kept"


def test_a_proposal_is_applied_only_instead_of_the_plan_that_it_was_made_from() -> None:
    (effect,) = asking().look(FOUND)
    assert isinstance(effect, Apply)
    assert effect.made_from == "before"


def test_an_apply_that_another_plan_came_before_is_reported_and_asked_for_again() -> None:
    run = asking()
    run.state = replace(run.state, applying=True)
    told = run.look(None, "by hand", failed="another plan runs")
    assert told == (Report(Level.WARNING, "load", "the apply failed: another plan runs"),)
    assert (run.state.under_way, run.state.applying, run.state.unheld_rps) == (None, False, (0.0,))


@pytest.mark.parametrize("direction", [Direction.UP, Direction.REVIEW])
def test_a_search_that_fails_is_reported_and_says_nothing_of_the_rates(direction: Direction) -> None:
    run = asking(direction)
    told = run.look(Proposal(1, Kind.FAILED, summary="planning failed: no memory"))
    assert told == (Report(Level.WARNING, "load", "more: planning failed: no memory"),)
    assert (run.state.under_way, run.state.unheld_rps) == (None, (0.0,))


def test_a_plan_whose_execution_times_are_right_is_reviewed_and_stays() -> None:
    run = Run((100.0,), error=0.04)
    run.poisson(1000, 92.0)
    assert run.asked().count(Direction.REVIEW) == 3
    assert run.changes == []


def test_a_plan_whose_execution_times_are_wrong_is_made_anew_once_for_the_same_rates() -> None:
    for kind in (Kind.HOLD, Kind.PLAN):
        run = Run((100.0,), error=0.2, kind=kind)
        run.poisson(1000, 92.0)
        ((_, direction, rates),) = run.changes
        assert (direction, rates) == (Direction.REVIEW, (100.0,))


def test_wrong_execution_times_that_no_plan_holds_are_reported_at_each_review() -> None:
    run = Run((100.0,), error=0.2, kind=Kind.NONE)
    run.poisson(1000, 92.0)
    told = [one.level for one in run.told() if one.reason.startswith("review of the")]
    assert told == [Level.WARNING] * 3
    assert run.changes == []
