"""The values of load control: state, observations, proposals, effects, and what must always hold.

Rates are tuples in the order of `LoadState.workloads`. Like those of a plan they count inferences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from controlplane.control.autoscaler.rates import Days, Rates
from controlplane.control.guard.effects import Learn, Report
from controlplane.domain.plan import Plan

PEAKS = 20
"""Parts of a dwell for each of which the highest forecast is kept."""

PerWorkload = tuple[float, ...]


class Direction(StrEnum):
    """Why another plan is wanted."""

    UP = "up"
    """More arrives than the plan is for."""
    DOWN = "down"
    """A cheaper plan may hold what arrives."""
    REVIEW = "review"
    """The plan's execution times may be others than those that were seen."""


class Kind(StrEnum):
    """What a proposal changes."""

    HOLD = "hold"
    """Nothing that runs: the servers hold the new rates as they are."""
    BATCHES = "batches"
    """Only batches, on the shares as they are."""
    PLAN = "plan"
    """Shares, places or the number of servers."""
    NONE = "none"
    """No plan was found."""
    FAILED = "failed"
    """The search failed: nothing is known of plans."""


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """Times in seconds, and how sure a decision must be in standard deviations.

    `horizon_s` is how far a decision looks ahead: until the next change after it could serve.
    `settle_s` is the shortest time between two changes, unless more arrives than is planned for. `dwell_s` is
    how long a cheaper plan must have been enough, without a moment of doubt, before it is applied. `burst_z`
    is how many deviations of the seconds of a bursty workload a plan is to hold. `day_s` is after what time
    the load is expected to repeat itself. `review_s` is the time between two looks at a plan's execution
    times; one of them must be off by the part `off` before the plan is changed for that.
    """

    horizon_s: float = 35.0
    settle_s: float = 15.0
    dwell_s: float = 300.0
    trigger_z: float = 3.0
    upper_z: float = 2.0
    burst_z: float = 1.5
    day_s: float = 86_400.0
    review_s: float = 300.0
    off: float = 0.05


@dataclass(frozen=True, slots=True)
class FollowedWorkload:
    """A workload, its endpoint, and what the running plan is for: a rate of inferences and a dispersion.

    `client_batch`: inferences in a request.
    """

    name: str
    endpoint: str
    planned_rps: float
    client_batch: int = 1
    dispersion: float = 1.0


@dataclass(frozen=True, slots=True)
class Propose:
    """Look for a plan that holds these rates: from the plan before, with the fewest changes.

    A share that starts anew counts as `move_price` times its cost. `errors` are those of execution times that
    the guard has found.
    """

    number: int
    direction: Direction
    rates_rps: PerWorkload
    reason: str
    move_price: float = 1.0
    errors: tuple[Learn, ...] = ()


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply the plan of a proposal, if the plan with the hash `made_from` still runs.

    `breaks`: the proposed plan states promises that it does not keep.
    """

    number: int
    reason: str
    made_from: str
    breaks: bool = False


Effect = Propose | Apply | Report


@dataclass(frozen=True, slots=True)
class Unheld:
    """A workload whose wanted rate no plan holds: the rate that the proposal is for instead, and why."""

    workload: str
    planned_rps: float
    reason: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """The answer to `Propose`. Costs are prices per hour, or numbers of GPUs where those are free.

    `moved_cost` is the cost of what runs twice while the plan is applied. `rates_rps` are those it is for:
    less than what was asked for only for `unheld` workloads. `error` is how far the running plan's execution
    times are off, as a part of them; None where that is unknown. `made_from` is the hash of the running plan.
    `breaks`: the plan states promises that it does not keep.
    """

    number: int
    kind: Kind
    rates_rps: PerWorkload = ()
    cost_before: float = 0.0
    cost_after: float = 0.0
    moved_cost: float = 0.0
    unheld: tuple[Unheld, ...] = ()
    summary: str = ""
    error: float | None = None
    made_from: str = ""
    breaks: bool = False


@dataclass(frozen=True, slots=True)
class LoadSeen:
    """What was seen since the observation before.

    `arrivals` has the requests of each workload in each second that ended meanwhile, None for one that
    was not seen. `workloads` and `plan_hash` are those of the plan that runs. `applied`: the proposed plan
    was; `failed` is why it could not be. `errors` are those of execution times that the guard has found and
    that no plan was looked for with.
    """

    now_s: float
    arrivals: tuple[PerWorkload | None, ...]
    workloads: tuple[FollowedWorkload, ...]
    proposal: Proposal | None = None
    applied: bool = False
    failed: str | None = None
    plan_hash: str = ""
    errors: tuple[Learn, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadState:
    """What is known about the load of a fleet.

    `minute` has the seconds of the minute that has not ended. `unheld_rps` are rates that no plan held: more
    must be seen before they are asked for again. `peaks_rps` has for each part of the dwell the highest
    forecast (parts, workloads), the present part first. `changed_s` is the time of the last change of plan,
    `tried_s` that of the last search for a cheaper one, `reviewed_s` that of the last look at its times.
    `plan_hash` is that of the plan that runs.
    """

    workloads: tuple[FollowedWorkload, ...]
    seconds: Rates
    minutes: Rates
    minute: tuple[PerWorkload, ...]
    days: Days
    unheld_rps: PerWorkload
    peaks_rps: tuple[PerWorkload, ...]
    part_s: float
    changed_s: float
    tried_s: float
    reviewed_s: float
    now_s: float
    under_way: Propose | None = None
    applying: bool = False
    number: int = 0
    limits: LoadLimits = LoadLimits()
    plan_hash: str = ""

    @property
    def planned_rps(self) -> PerWorkload:
        """The rates that the running plan is for."""
        return tuple(w.planned_rps for w in self.workloads)


def begin(workloads: Sequence[FollowedWorkload], limits: LoadLimits, now_s: float) -> LoadState:
    """The state of a fleet whose plan was applied at `now_s`, with nothing seen so far."""
    count = len(workloads)
    return LoadState(
        workloads=tuple(workloads),
        seconds=Rates.unknown(count, 1.0),
        minutes=Rates.unknown(count, 60.0),
        minute=(),
        days=Days.unknown(count, limits.day_s, now_s),
        unheld_rps=(0.0,) * count,
        peaks_rps=(),
        part_s=now_s,
        changed_s=now_s,
        tried_s=now_s,
        reviewed_s=now_s,
        now_s=now_s,
        limits=limits,
    )


def resumed(state: LoadState) -> LoadState:
    """The state in which another controller goes on: what was under way is decided anew."""
    return replace(state, under_way=None, applying=False)


def with_plan(state: LoadState, seen: LoadSeen) -> LoadState:
    """The state for another plan; what was learned of workloads that stay is kept.

    What no plan held is forgotten, unless the new plan is the one that could not hold it.
    """
    workloads = seen.workloads
    fresh = begin(workloads, state.limits, seen.now_s)
    row = {w.name: i for i, w in enumerate(state.workloads)}
    rows = [row.get(w.name) for w in workloads]
    unheld = state.unheld_rps if state.applying else (0.0,) * len(row)
    return replace(
        fresh,
        unheld_rps=tuple(0.0 if i is None else unheld[i] for i in rows),
        seconds=state.seconds.of_workloads(rows),
        minutes=state.minutes.of_workloads(rows),
        days=state.days.of_workloads(rows),
        number=state.number,
        plan_hash=seen.plan_hash,
    )


def followed_workloads(plan: Plan) -> tuple[FollowedWorkload, ...]:
    """The workloads of a plan with the rates it is for, in its order; a pool's parts are added up."""
    found: dict[str, FollowedWorkload] = {}
    for _, _, w in plan.placements():
        before = found[w.name].planned_rps if w.name in found else 0.0
        found[w.name] = FollowedWorkload(
            w.name, w.endpoint, before + w.rate_rps, w.client_batch, w.dispersion
        )
    return tuple(found.values())
