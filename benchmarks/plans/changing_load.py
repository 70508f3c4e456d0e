"""A changing load in simulated time: the real load control and planner, beside two rules and an oracle.

`python -m benchmarks.plans.changing_load waves|day|threshold [--seed N]`.

`waves`: two waves in 3,200 s, the second one higher, in the form of gpulet's Fig 15. `day`: a day, compressed
twelve times (7,200 s), with bursts (index of dispersion 4) and a flash crowd of three times the rate in 30 s.
`threshold`: ten minutes of Poisson arrivals at the rates that the plan is for.
Models, times and interference are those of the V100 catalogue; requests run through the simulator.

Ours is the controller's decision (`control.autoscaler`), fed with the counts of seconds. The references are
a rule that adds and removes replicas at 70 % utilisation (every 15 s, tolerance 10 %, 300 s before fewer),
and a new plan every 20 s for the mean rate of the last 20. The oracle has the cheapest plan for the highest
rate of each 20 s at no delay. A plan takes 2 s to make and 15 s to apply; meanwhile the GPUs of both count,
and so do those of shadows, which take memory. Queues carry over; servers that start or drain slow down their
neighbours (benchmarks/support/replay.py).

Exits 1 where an aim is missed: fewer than 1 % late in each 20 s and GPU hours up to 1.15 of the oracle's, at
most 6 moves a workload (days), at most one and three windows (`threshold`).
"""

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from planning import StoppedClock, v100_with_memory, workload

from benchmarks.harness import Figures, show, table
from benchmarks.support.replay import WINDOW_S, Counts, Seen, anew, replay
from controlplane.control.autoscaler.decisions import tick
from controlplane.control.autoscaler.state import (
    Apply,
    Kind,
    LoadLimits,
    LoadSeen,
    Proposal,
    Propose,
    begin,
    followed_workloads,
)
from controlplane.domain.plan import Partition, Plan, PlannedGpu, Rule
from controlplane.planning import registry
from controlplane.planning.protocol import Device, PlanRequest
from controlplane.planning.replan.reuse import cost_of
from controlplane.planning.replan.smallest_change import moved_cost
from controlplane.runtime.autoscaler.propose import Found, find

PLANNING_S, APPLYING_S = 2, 15
LATE_PERCENT, OF_ORACLE, MOVES = 1.0, 1.15, 6
DAY_S, CROWD_S = 7_200, 4_500
AT_FIRST = 1.1  # the part of the base rates that the first plan is for
DEVICE: Device = v100_with_memory("ours")
WORKLOADS = tuple(
    workload(*asked)
    for asked in (("A", "alexnet", 15.0, 500.0), ("R", "resnet50", 40.0, 200.0), ("V", "vgg19", 60.0, 150.0))
)
JOINT = registry.strategy("joint")
STEP = 1.05  # by which rates of the oracle and of the plan every 20 s are rounded up: plans are used again


@dataclass(frozen=True)
class Case:
    """A load: its scale over the base rates by second, its dispersion, and the dwell of our control."""

    name: str
    scale: tuple[float, ...]
    dispersion: float
    dwell_s: float
    most_moves: int | None
    most_windows: int = 0
    """That may be above LATE_PERCENT."""

    def counts(self, seed: int) -> Counts:
        """Requests by second and workload."""
        random = np.random.default_rng(seed)
        rates = np.array(self.scale)[:, None] * np.array([w.rate_rps for w in WORKLOADS])
        # A count with this variance over its mean: a Poisson number of groups of Poisson sizes.
        if self.dispersion == 1.0:
            return random.poisson(rates)
        size = self.dispersion - 1.0
        return random.poisson(random.poisson(rates / size) * size)


def waves() -> Case:
    def scale(t: float) -> float:
        if t < 1200:
            return 1.0 + 2.0 * math.sin(math.pi * t / 1200) ** 2
        if t < 1400:
            return 1.0
        return 1.0 + 3.5 * math.sin(math.pi * (t - 1400) / 1800) ** 2

    return Case("two waves, 3,200 s", tuple(scale(t) for t in range(3200)), 1.0, 120.0, None)


def day() -> Case:
    def scale(t: float) -> float:
        daily = 1.0 - 0.5 * math.cos(2.0 * math.pi * t / DAY_S)
        rising, falling = (t - CROWD_S) / 30.0, (CROWD_S + 150 - t) / 60.0 + 1.0
        return daily * (1.0 + 2.0 * min(max(min(rising, falling), 0.0), 1.0))

    return Case("a day in two hours", tuple(scale(t) for t in range(DAY_S)), 4.0, LoadLimits().dwell_s, MOVES)


def threshold() -> Case:
    """The rates that the first plan is for, which is where noise is as often above as below it."""
    return Case(
        "ten minutes at the planned rates", (AT_FIRST,) * 600, 1.0, LoadLimits().dwell_s, 1, most_windows=3
    )


@dataclass
class Served:
    """The plan of each second, its GPUs, and moves by workload; what became of the requests."""

    plans: list[Plan] = field(default_factory=list)
    gpus: list[float] = field(default_factory=list)
    moves: dict[str, int] = field(default_factory=lambda: dict.fromkeys((w.name for w in WORKLOADS), 0))
    seen: Seen = field(default_factory=Seen)

    def second(self, plan: Plan, coming: Plan | None) -> None:
        """One more second on `plan`, while `coming` is applied."""
        self.plans.append(plan)
        self.gpus.append(max(len(plan.gpus), len(coming.gpus) if coming is not None else 0))

    def moved(self, before: Plan, after: Plan) -> None:
        new = anew(before, after)
        for placed in (w for _, p in after.partitions() if p.id in new for w in p.workloads):
            self.moves[placed.name] += 1


def request(rates: Sequence[float], previous: Plan | None = None) -> PlanRequest:
    asked = tuple(replace(w, rate_rps=max(rate, 0.1)) for w, rate in zip(WORKLOADS, rates, strict=True))
    return PlanRequest(asked, {"v100": DEVICE}, Rule.P99, StoppedClock(), previous=previous)


KNOWN: dict[tuple[float, ...], Plan] = {}


def plan_for(rates: Sequence[float], previous: Plan | None = None) -> Plan:
    """A plan for these rates, rounded up."""
    key = tuple(STEP ** math.ceil(math.log(max(rate, 0.1)) / math.log(STEP)) for rate in rates)
    if key not in KNOWN:
        KNOWN[key] = JOINT.plan(request(key))
    return KNOWN[key]


def rates_of(plan: Plan) -> tuple[float, ...]:
    return tuple(w.planned_rps for w in followed_workloads(plan))


def first_plan() -> Plan:
    """Of the base rates with a tenth more, in the order of the workloads."""
    return JOINT.plan(request([AT_FIRST * w.rate_rps for w in WORKLOADS]))


def in_order(plan: Plan, rates: Sequence[float]) -> dict[str, float]:
    """Rates by workload, from the order of the plan's workloads."""
    return dict(zip((w.name for w in followed_workloads(plan)), rates, strict=True))


def ours(case: Case, counts: Counts) -> Served:
    """The controller's decisions, with answers after the time that planning and applying take."""
    served, plan = Served(), first_plan()
    state = begin(followed_workloads(plan), LoadLimits(dwell_s=case.dwell_s, day_s=DAY_S), 0.0)
    column = {w.name: i for i, w in enumerate(WORKLOADS)}
    due: tuple[int, Propose, Found | None] | None = None
    applying: tuple[int, Plan] | None = None
    for t, row in enumerate(counts):
        proposal = None
        if applying is not None and t >= applying[0]:
            served.moved(plan, applying[1])
            plan, applying = applying[1], None
        if due is not None and t >= due[0]:
            _, asked, found = due
            proposal = _proposal(asked, plan, found)
        followed = followed_workloads(plan)
        arrivals = (tuple(float(row[column[w.name]]) for w in followed),)
        state, effects = tick(state, LoadSeen(float(t + 1), arrivals, followed, proposal))
        for effect in effects:
            if isinstance(effect, Propose):
                wanted = in_order(plan, effect.rates_rps)
                question = request([wanted[w.name] for w in WORKLOADS], plan)
                due = (
                    t + PLANNING_S,
                    effect,
                    find(
                        JOINT, question, in_order(plan, rates_of(plan)), effect.direction, effect.move_price
                    ),
                )
            if isinstance(effect, Apply):
                assert due is not None
                assert due[2] is not None
                took = 1 if due[2].kind is Kind.HOLD else APPLYING_S
                applying = (t + took, due[2].plan)
        if state.under_way is None:
            due = None
        served.second(plan, None if applying is None else applying[1])
    return served


def _proposal(asked: Propose, plan: Plan, found: Found | None) -> Proposal:
    if found is None:
        return Proposal(asked.number, Kind.NONE, summary="no plan")
    return Proposal(
        asked.number,
        found.kind,
        tuple(found.rates_rps[w.name] for w in followed_workloads(plan)),
        cost_of(plan.gpus),
        cost_of(found.plan.gpus),
        moved_cost(plan, found.plan),
        found.unheld,
    )


def every_20_s(
    case: Case, counts: Counts, planned: Callable[[Sequence[float], Plan | None], Plan] = plan_for
) -> Served:
    """A new plan every 20 s for the mean rate of the last 20, from the one before."""
    served, plan = Served(), planned([AT_FIRST * w.rate_rps for w in WORKLOADS], None)
    coming: tuple[int, Plan] | None = None
    for t in range(len(counts)):
        if coming is not None and t >= coming[0]:
            served.moved(plan, coming[1])
            plan, coming = coming[1], None
        if t and t % WINDOW_S == 0:
            new = planned(counts[t - WINDOW_S : t].mean(axis=0), plan)
            coming = (t + PLANNING_S + APPLYING_S, new) if new is not plan else None
        served.second(plan, None if coming is None else coming[1])
    return served


def utilisation(case: Case, counts: Counts) -> Served:
    """Replicas of each workload's first partition, so many that 70 % of their capacity is used."""
    base = first_plan()
    replica = {p.workloads[0].name: p for _, p in base.partitions()}
    capacity = {n: p.workloads[0].predicted.capacity_rps or 1.0 for n, p in replica.items()}
    served, wanted_log = Served(), list[dict[str, int]]()
    number = dict.fromkeys(replica, 1)
    plan, coming = _replicas(replica, number), None
    for t in range(len(counts)):
        if coming is not None and t >= coming[0]:
            served.moved(plan, coming[1])
            plan, coming = coming[1], None
        if t and t % 15 == 0:
            mean = counts[t - 15 : t].mean(axis=0)
            ratio = {
                w.name: mean[i] / (number[w.name] * capacity[w.name] * 0.7) for i, w in enumerate(WORKLOADS)
            }
            wanted = {
                n: number[n] if abs(r - 1.0) <= 0.1 else min(max(1, math.ceil(number[n] * r)), 8)
                for n, r in ratio.items()
            }
            wanted_log.append(wanted)
            # Fewer only as far as every recommendation of the last 300 s agrees.
            new = {n: max(log[n] for log in wanted_log[-20:]) for n in number}
            if new != number and coming is None:
                number, coming = new, (t + APPLYING_S, _replicas(replica, new))
        served.second(plan, None if coming is None else coming[1])
    return served


def _replicas(replica: Mapping[str, Partition], number: Mapping[str, int]) -> Plan:
    """First fit, largest first."""
    gpus: list[list[Partition]] = []
    for name, partition in sorted(replica.items(), key=lambda pair: -pair[1].percent):
        for i in range(number[name]):
            one = replace(
                partition,
                id=f"{name}-{i + 1}",
                shadow=None,
                workloads=tuple(replace(w, rate_rps=w.rate_rps / number[name]) for w in partition.workloads),
            )
            room = next((g for g in gpus if sum(p.percent for p in g) + one.percent <= 100.0), None)
            if room is None:
                gpus.append(room := [])
            room.append(one)
    placed = tuple(PlannedGpu(f"v100-{i}", "v100", tuple(g), price_per_hour=3.06) for i, g in enumerate(gpus))
    return Plan("replicas", Rule.P99, "ours", placed, quantile=0.95)


def measure(counts: Counts, served: Served) -> None:
    served.seen = replay(counts, served.plans, WORKLOADS, {"v100": DEVICE.latency})


def oracle(case: Case) -> list[float]:
    """The GPUs of the cheapest plan for the highest rate of each window, by second."""
    gpus: list[float] = []
    for begin_s in range(0, len(case.scale), WINDOW_S):
        highest = max(case.scale[begin_s : begin_s + WINDOW_S])
        plan = plan_for([highest * w.rate_rps for w in WORKLOADS])
        gpus += [float(len(plan.gpus))] * WINDOW_S
    return gpus[: len(case.scale)]


CASES: Mapping[str, Callable[[], Case]] = {
    "waves": waves,
    "day": day,
    "threshold": threshold,
}
POLICIES: Mapping[str, Callable[[Case, Counts], Served]] = {
    "ours": ours,
    "70 % utilisation": utilisation,
    "new plan every 20 s": every_20_s,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=tuple(CASES), nargs="?", default="threshold")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals")
    given = parser.parse_args()
    case = CASES[given.case]()
    counts, ideal = case.counts(given.seed), oracle(case)
    found: dict[str, Served] = {}
    for name, policy in POLICIES.items():
        found[name] = policy(case, counts)
        measure(counts, found[name])
        print(f"{name}: done", file=sys.stderr, flush=True)
    report(case, found, ideal)
    figures = Figures()
    judge(figures, case, found["ours"], ideal)
    return figures.end()


def report(case: Case, found: Mapping[str, Served], ideal: Sequence[float]) -> None:
    """Print what each policy did."""
    columns = ("policy", ">late %", ">windows above 1 %", ">worst window %", ">GPU hours", ">of oracle")
    made = table(f"{case.name}; oracle {sum(ideal) / 3600:.2f} GPU hours", *columns, ">moves/workload")
    for name, served in found.items():
        seen = served.seen
        above = sum(share > LATE_PERCENT for share in seen.windows)
        made.add_row(
            name,
            f"{100.0 * seen.late / seen.requests:.3f}",
            f"{above} of {len(seen.windows)}",
            f"{max(seen.windows):.1f}",
            f"{sum(served.gpus) / 3600:.2f}",
            f"{sum(served.gpus) / sum(ideal):.2f}",
            f"{np.mean(list(served.moves.values())):.1f} (at most {max(served.moves.values())})",
        )
    show(made, width=140)


def judge(figures: Figures, case: Case, mine: Served, ideal: Sequence[float]) -> None:
    """Take ours as figures, with the aims of the case."""
    windows = mine.seen.windows
    above = sum(share > LATE_PERCENT for share in windows)
    late = 100.0 * mine.seen.late / mine.seen.requests
    figures.add(f"{case.name}: late", late, "%", at_most=LATE_PERCENT)
    name = f"{case.name}: windows of {len(windows)} above {LATE_PERCENT:g} %"
    figures.add(name, above, at_most=case.most_windows)
    figures.add(f"{case.name}: GPU hours of the oracle", sum(mine.gpus) / sum(ideal), at_most=OF_ORACLE)
    figures.add(f"{case.name}: most moves of a workload", max(mine.moves.values()), at_most=case.most_moves)


if __name__ == "__main__":
    sys.exit(main())
