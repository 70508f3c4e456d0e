"""What shadows cover, by what is demanded, and whether it is so: `benchmarks.plans.planners covers`.

The planner computes what a shadow covers; the judge here is a simulation of requests. Each model in turn
takes so many times as long on all its servers: with the plan's servers, and with all shadows of the model
active. Where a plan says that the shadows of a model on a GPU cover the factor, no workload of that GPU may
be late then. Short lists also run with the controller's own redirects.

`10 %`: shadows with at most 10 % more, as iGniter's, on the GPUs of `joint` without a demand.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

import numpy as np
import planning
from slower import Slower, redirected, served_by

from benchmarks.harness import Figures
from benchmarks.support.promises import late_slower
from controlplane.domain.plan import Plan, PlannedGpu, Rule
from controlplane.domain.workload import Workload, with_covers_demanded
from controlplane.planning.judge.finalise import Draft, finalise
from controlplane.planning.judge.shadows import EXTRA_PERCENT
from controlplane.simulate.engine import Settings, simulate

DEMANDS, FACTORS = (None, 1.1, 1.25), (1.05, 1.1, 1.2)
SECONDS = {12: 100.0, 50: 100.0, 200: 20.0, 1000: 20.0}
"""Simulated, by the length of the list: 25 to 1,200 requests a second of each workload."""
MOST_GPUS = {12: (7, 7, 9, 9), 50: (18, 18, 21, 23), 200: (64, 64, 71, 84), 1000: (327, 327, 368, 433)}
"""Of each plan of a list: what it needed before."""
GUARDED = 12
"""Up to so many workloads the controller redirects too."""
TRUTH = planning.v100("ours").latency


@dataclass(slots=True)
class Late:
    """Workloads late in a simulation: before a redirect, after it, and of these the ones that are covered."""

    before: int = 0
    after: int = 0
    covered: int = 0
    late_though_covered: int = 0


def covers(long: bool, figures: Figures) -> None:
    """Print and judge each plan."""
    print(
        "GPUs by what shadows must cover (P99, our model), and what they cover; late workloads on the GPUs\n"
        "of a slower model, for all models: before its shadows are active / after / after of those covered"
    )
    print(f"{'workloads':<10}{'demand':<7}{'GPUs':>5}{'least':>6}{'median':>7}{'most':>5}", end="")
    print("".join(f"{f'{f:g} times slower':>26}" for f in FACTORS))
    for count in (12, 50, 200, 1000)[: 4 if long else 2]:
        for (demand, plan), most in zip(_plans(count), MOST_GPUS[count], strict=True):
            found = [p.shadow.covers or 0.0 for _, p in plan.partitions() if p.shadow is not None]
            row = f"{count:<10}{demand:<7}{len(plan.gpus):>5}{min(found):>6.2f}{np.median(found):>7.2f}"
            print(f"{row}{max(found):>5.2f}", end="", flush=True)
            name = f"{count}, covers {demand}"
            for factor in FACTORS:
                late = late_where_slower(plan, factor, SECONDS[count])
                text = f"{late.before} / {late.after} / {late.late_though_covered} of {late.covered}"
                print(f"{text:>26}", end="", flush=True)
                figures.add(f"{name}: late at {factor:g} though covered", late.late_though_covered, at_most=0)
            print()
            figures.add(name, len(plan.gpus), "GPUs", at_most=most if plan.verified else 0)
            if count <= GUARDED:
                _by_the_guard(figures, name, plan)


def _plans(count: int) -> Iterator[tuple[str, Plan]]:
    """The plans of a list by name."""
    listed = planning.published(count)
    for demand in DEMANDS:
        asked = listed if demand is None else with_covers_demanded(listed, demand)
        plan = planning.planned("joint", asked, rule=Rule.P99, latency="ours")
        if demand is None:
            yield "10 %", _with_ten_percent(plan, listed)
        yield "free" if demand is None else f"{demand:g}", plan


def _with_ten_percent(plan: Plan, workloads: tuple[Workload, ...]) -> Plan:
    """The plan with shadows that have at most so much more than their partition."""
    request = planning.request(workloads, rule=Rule.P99, latency="ours")
    bare = [replace(g, partitions=tuple(replace(p, shadow=None) for p in g.partitions)) for g in plan.gpus]
    return finalise("joint", request, Draft(tuple(bare), most_extra=EXTRA_PERCENT), 0.0)


def late_where_slower(plan: Plan, factor: float, seconds: float) -> Late:
    """How many workloads are late on the GPUs of each model, which in turn is slower."""
    late = Late()
    for model in planning.MODELS:
        moved = served_by(plan, model)
        own = {w.name for g in plan.gpus if _has(g, moved) for p in g.partitions for w in p.workloads}
        gpus = [g for g in plan.gpus if own & {w.name for p in g.partitions for w in p.workloads}]
        near, sure = replace(plan, gpus=tuple(gpus)), own - _uncovered(plan, moved, factor)
        late.before += len(own & _simulated(near, model, factor, seconds))
        after = own & _simulated(redirected(near, moved), model, factor, seconds)
        late.after += len(after)
        late.covered += len(sure)
        late.late_though_covered += len(after & sure)
    return late


def _has(gpu: PlannedGpu, partitions: Container[str]) -> bool:
    return any(p.id in partitions for p in gpu.partitions)


def _uncovered(plan: Plan, moved: Container[str], factor: float) -> set[str]:
    """The workloads of GPUs on which a shadow of these partitions covers less."""
    short = {
        gpu.id
        for gpu, p in plan.partitions()
        if p.id in moved and (p.shadow is None or (p.shadow.covers or 1.0) < factor)
    }
    return {w.name for gpu, _, w in plan.placements() if gpu.id in short}


def _simulated(plan: Plan, model: str, factor: float, seconds: float) -> set[str]:
    """The workloads that are late where a model is slower."""
    outcome = simulate(plan, {"v100": Slower(TRUTH, model, factor)}, Settings(seconds))
    return {w.name for w in outcome.workloads if not w.holds}


def _by_the_guard(figures: Figures, name: str, plan: Plan) -> None:
    """Workloads of the slower model that are late 15 s after it where the controller redirects."""
    for factor in FACTORS:
        late = late_slower(plan, TRUTH, factor, guard=True)
        short = {w for model in planning.MODELS for w in _uncovered(plan, served_by(plan, model), factor)}
        figures.add(f"{name}: late at {factor:g}, redirected by the guard", len(late))
        figures.add(f"{name}: of these covered", len(late - short), at_most=0)
