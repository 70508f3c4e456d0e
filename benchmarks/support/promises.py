"""GPUs and late workloads of five ways to plan, by several judges: `benchmarks.plans.planners promises`.

A workload is late if its simulated P99 exceeds its SLO. The judges are

* the plan's own latency model, with constant, Poisson and clumped arrivals (index of dispersion 4);
* held-out measurements: the latency model fitted on one half of the published pairs, where `joint` plans with
  the one fitted on the other half (iGniter's coefficients are those published, of all pairs);
* the plan's own model, each model in turn 10 % slower: before and after the controller's redirects.

`a GPU each`: a whole GPU for a workload, more where one does not hold it. `equal shares`: workloads in turn
on as many GPUs as `joint` takes, with equal shares and the best batch for each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import planning

from benchmarks.harness import Figures, show, table
from controlplane.domain.plan import MOST_SERVERS, Plan, PlannedGpu, Rule
from controlplane.domain.profile import ColocationPoint
from controlplane.domain.workload import Workload
from controlplane.latency import registry as latency_registry
from controlplane.latency.protocol import LatencyModel
from controlplane.planning import registry
from controlplane.planning.capacity.items import Item
from controlplane.planning.capacity.tolerance import ToleranceTable
from controlplane.planning.judge.finalise import Draft, finalise
from controlplane.planning.judge.placements import gpu_of, partition_of
from controlplane.planning.protocol import Device, PlanRequest
from controlplane.simulate.arrivals import Demand, Gaps
from controlplane.simulate.closed_loop.faults import Fault, Kind
from controlplane.simulate.closed_loop.run import run
from controlplane.simulate.engine import Settings, simulate
from controlplane.simulate.network import Conditions

SECONDS, CLUMPED_CV = 100.0, 2.0
SLOWER, SLOWER_S, SETTLED_S, MOST_SLOWED = 1.1, 40.0, 15, 50
"""How much slower, simulated for how long, and when the guard has had its time; lists up to what length."""
ARRIVALS = {
    "constant": Demand(1.0, Gaps.CONSTANT),
    "Poisson": Demand(1.0),
    "clumped": Demand(1.0, Gaps.GAMMA),
}
HALVES = (0, 1)
"""Of the published pairs: plans are made with the first and judged by the second."""
MOST_LATE = {12: 1, 50: 2, 200: 8}
"""Of `joint` by held-out pairs: what was late before with its spread."""

Late = dict[str, int]


@cache
def device(latency: str, half: int | None = None) -> Device:
    """The V100, with a model fitted on every pair or on one half of them."""
    known = planning.v100(latency)
    if half is None:
        return known
    profiles = {
        name: replace(own, colocation=tuple(c for c in own.colocation if _half(name, c) == half))
        for name, own in known.profiles.items()
    }
    return replace(known, latency=latency_registry.build(latency, known.pool.device, profiles))


def _half(model: str, point: ColocationPoint) -> int:
    """Both sides of a pair are in one half."""
    neighbour = point.neighbours[0]
    sides = (model, point.batch, point.percent), (neighbour.model, neighbour.batch, neighbour.percent)
    return int(np.random.default_rng(list(repr(sorted(sides)).encode())).integers(2))


@dataclass(frozen=True, slots=True)
class Way:
    """A way to plan: a strategy's name or one of the two without a planner, with its own rule and model."""

    name: str
    rule: Rule
    latency: str

    def plan(self, workloads: Sequence[Workload], half: int | None = None) -> Plan:
        """With the latency model fitted on one half of the pairs where it is fitted at all."""
        own = device(self.latency, half if self.latency == "ours" else None)
        request = PlanRequest(tuple(workloads), {"v100": own}, self.rule, planning.StoppedClock())
        if self.name == "a GPU each":
            return finalise(self.name, request, Draft(_a_gpu_each(workloads, request)), 0.0)
        if self.name == "equal shares":
            gpus = len(JOINT.plan(workloads, half).gpus)
            return finalise(self.name, request, Draft(_equal_shares(workloads, request, gpus)), 0.0)
        return registry.strategy(self.name).plan(request)


JOINT = Way("joint", Rule.P99, "ours")
WAYS = (
    Way("a GPU each", Rule.P99, "ours"),
    Way("equal shares", Rule.P99, "ours"),
    Way("igniter", Rule.HALF_SLO, "igniter"),
    Way("ffd++", Rule.HALF_SLO, "igniter"),
    JOINT,
)


def _a_gpu_each(workloads: Sequence[Workload], request: PlanRequest) -> tuple[PlannedGpu, ...]:
    gpus: list[PlannedGpu] = []
    (gpu_type,) = planning.types_of(request).values()
    for w in workloads:
        sized = ToleranceTable.of([Item((w,), n) for n in range(1, MOST_SERVERS + 1)], gpu_type)
        servers = 1 + int(np.isfinite(sized.smallest_percent).argmax())
        batch = int(sized.tolerance.batch[servers - 1, -1])
        for n in range(servers):
            suffix = f"-{n + 1}" if servers > 1 else ""
            own = partition_of(f"{w.name}{suffix}", (w,), 100.0, batch, None, 1.0 / servers)
            gpus.append(gpu_of(len(gpus), gpu_type.device, [own]))
    return tuple(gpus)


def _equal_shares(workloads: Sequence[Workload], request: PlanRequest, count: int) -> tuple[PlannedGpu, ...]:
    (gpu_type,) = planning.types_of(request).values()
    tolerance = ToleranceTable.of([Item((w,)) for w in workloads], gpu_type).tolerance
    gpus = []
    for g in range(count):
        here = range(g, len(workloads), count)
        share = int(gpu_type.floor(100.0 / len(here) + 1e-9))
        percent = float(gpu_type.percents[share])
        parts = [
            partition_of(workloads[i].name, (workloads[i],), percent, int(tolerance.batch[i, share]), None)
            for i in here
        ]
        gpus.append(gpu_of(g, gpu_type.device, parts))
    return tuple(gpus)


def late(plan: Plan, truth: LatencyModel, arrivals: str, seed: int = 1) -> int:
    """Workloads whose simulated P99 exceeds the SLO."""
    rates: dict[str, float] = {}
    for _, _, w in plan.placements():
        rates[w.name] = rates.get(w.name, 0.0) + w.rate_rps
    demands = {
        name: replace(ARRIVALS[arrivals], rate_rps=rate, cv=CLUMPED_CV if arrivals == "clumped" else 1.0)
        for name, rate in rates.items()
    }
    outcome = simulate(plan, {"v100": truth}, Settings(SECONDS, seed, demands))
    return sum(not w.holds for w in outcome.workloads)


def late_slower(plan: Plan, truth: LatencyModel, factor: float, *, guard: bool = False) -> set[str]:
    """Workloads late in the last part of a simulation where their own model is slower."""
    found = set()
    models = {w.name: w.model for _, _, w in plan.placements()}
    for model in sorted(set(models.values())):
        fault = Fault(Kind.SLOWER, model, 0.0, factor)
        outcome = run(plan, {"v100": truth}, Settings(SLOWER_S), Conditions(), [fault], guard=guard)
        for one in outcome.workloads:
            sent, missed = one.sent[SETTLED_S:].sum(), one.late[SETTLED_S:].sum()
            if models[one.name] == model and missed > 0.01 * sent:
                found.add(one.name)
    return found


def judged(way: Way, workloads: Sequence[Workload], *, slowed: bool) -> tuple[Plan, Late]:
    """The plan of one way and how many workloads of it are late by each judge."""
    plan, truth = way.plan(workloads), device(way.latency).latency
    found = {name: late(plan, truth, name) for name in ARRIVALS}
    held_out, other = way.plan(workloads, HALVES[0]), device("ours", HALVES[1]).latency
    found["held-out"] = late(held_out, other, "Poisson")
    found["held-out, constant"] = late(held_out, other, "constant")
    if slowed:
        found["slower"] = len(late_slower(plan, truth, SLOWER))
        found["redirected"] = len(late_slower(plan, truth, SLOWER, guard=True))
    return plan, found


COLUMNS = ("constant", "Poisson", "clumped", "held-out, constant", "held-out", "slower", "redirected")


def promises(long: bool, figures: Figures) -> None:
    """All ways on the published lists."""
    made = table(
        "late workloads: by arrivals and the plan's own model, by held-out pairs, 10 % slower",
        ">workloads",
        "way",
        ">GPUs",
        *(f">{name}" for name in COLUMNS),
    )
    for count in (12, 50, 200) if long else (12, 50):
        listed = planning.published(count)
        for way in WAYS:
            plan, found = judged(way, listed, slowed=count <= (MOST_SLOWED if long else 12))
            made.add_row(
                str(count), way.name, str(len(plan.gpus)), *(str(found.get(name, "–")) for name in COLUMNS)
            )
            aims(figures, count, way.name, found)
    show(made)


def aims(figures: Figures, count: int, way: str, found: Mapping[str, int]) -> None:
    """`joint` keeps what it promises; iGniter's plans do at the arrivals that its own clients send."""
    if way == "joint":
        for arrivals in ("constant", "Poisson"):
            figures.add(f"joint, {count}, {arrivals}: late", found[arrivals], at_most=0)
        figures.add(f"joint, {count}: late by held-out pairs", found["held-out"], at_most=MOST_LATE[count])
    if way == "igniter":
        figures.add(f"igniter, {count}, constant: late", found["constant"], at_most=0)
