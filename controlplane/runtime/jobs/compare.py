"""One spec, several strategies, several truths; the plans and simulations run on all cores."""

from __future__ import annotations

import functools
import multiprocessing
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from controlplane.domain import device
from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan, Rule
from controlplane.domain.settings import PlanSettings
from controlplane.files.mistakes import nearest
from controlplane.files.plans import read_spec
from controlplane.latency import registry as latency_registry
from controlplane.latency.protocol import LatencyModel
from controlplane.planning.judge.evaluate import SLACK, Terms, judge
from controlplane.planning.protocol import Device as PlanningDevice
from controlplane.ports import Progress
from controlplane.report.tables.comparison_table import (
    Compared,
    Comparison,
    Refused,
    Truth,
    UnderTruth,
    Utilisation,
)
from controlplane.runtime import SystemClock
from controlplane.runtime.devices import known_device, known_profiles
from controlplane.runtime.jobs.plan import Choices, devices_of, make_plan
from controlplane.runtime.jobs.simulate import conditions_of, request_rates
from controlplane.simulate.arrivals import Demand, Gaps
from controlplane.simulate.engine import Scaled, Settings, simulate

_QUANTILE = 0.95
_BURSTINESS = 2.0
_MEASURED = latency_registry.DEFAULT


@dataclass(frozen=True, slots=True)
class World:
    """A truth that can be simulated.

    model: the latency model of the execution times; None is the plan's own. factor: on these times.
    burstiness: the coefficient of variation of the gaps between requests: 0 is even; None keeps the
    workloads' arrivals.
    """

    truth: Truth
    model: str | None = _MEASURED
    factor: float = 1.0
    burstiness: float | None = None


_BELIEVED = "executions take what the plan's own latency model says, at their median"
_AS_MEASURED = f"executions take what was measured; between the points, the model {_MEASURED}"
_BURSTS = f"as measured, with requests in bursts (gaps vary {_BURSTINESS:g} times as much as by Poisson)"
_EVEN = "as measured, with requests at even intervals, as some load generators send them"
TRUTHS: Mapping[str, World] = {
    one.truth.name: one
    for one in (
        World(Truth("believed", "As believed", _BELIEVED), model=None),
        World(Truth("measured", "As measured", _AS_MEASURED)),
        World(Truth("slower", "10 % slower", "as measured, and 10 % longer"), factor=1.1),
        World(Truth("faster", "10 % faster", "as measured, and 10 % shorter"), factor=0.9),
        World(Truth("burstier", "Burstier", _BURSTS), burstiness=_BURSTINESS),
        World(Truth("even", "Evenly spaced", _EVEN), burstiness=0.0),
    )
}
DEFAULT = ("believed", "measured", "slower", "faster", "burstier")


def chosen(names: Sequence[str]) -> tuple[World, ...]:
    """Return the truths of these names. Raises InputError, with the nearest name, for an unknown one."""
    for name in names:
        if name not in TRUTHS:
            raise InputError(f"no truth is called {name!r}{nearest(name, TRUTHS)}", field="--truths")
    return tuple(TRUTHS[name] for name in dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class Question:
    """The spec to plan and where its profiles are; how long to simulate, with which seed."""

    spec: Path
    profiles: Path
    seconds: float = 30.0
    seed: int = 1


def compare(
    question: Question,
    strategies: Sequence[str],
    worlds: Sequence[World],
    progress: Progress | None = None,
) -> Comparison:
    """Plan with each strategy, and simulate each plan under each truth.

    A strategy that cannot plan this spec is left out, with its reason. Raises InputError where none can.
    """
    total = len(strategies) * (1 + len(worlds))
    show = (lambda *_: None) if progress is None else progress.advance
    plans: dict[str, Plan] = {}
    late: dict[str, tuple[str, ...]] = {}
    refused: dict[str, InputError] = {}
    outcomes: dict[str, dict[str, UnderTruth]] = {name: {} for name in strategies}
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(
        min(cores, max(total, 1)), mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        planning = {pool.submit(_plan, question, name): name for name in strategies}
        simulations: dict[Future[UnderTruth], tuple[str, str]] = {}
        for done, future in enumerate(as_completed(planning), 1):
            name = planning[future]
            show(f"planned with {name}", done, total, None)
            try:
                plans[name], late[name] = future.result()
            except InputError as error:
                refused[name] = error
                continue
            for world in worlds:
                job = pool.submit(_simulate, question, plans[name], world)
                simulations[job] = name, world.truth.name
        for done, job in enumerate(as_completed(simulations), len(strategies) + 1):
            name, truth_name = simulations[job]
            outcomes[name][truth_name] = job.result()
            show(f"simulated {name}", done, total, None)
    if not plans:
        raise refused[strategies[0]]
    gpus = [gpu for plan in plans.values() for gpu in plan.gpus]
    return Comparison(
        workloads=len(read_spec(question.spec)[0].workloads),
        noun=device.noun(gpu.type for gpu in gpus),
        prices={gpu.type: gpu.price_per_hour for gpu in sorted(gpus, key=lambda gpu: gpu.type)},
        seconds=question.seconds,
        seed=question.seed,
        truths=tuple(world.truth for world in worlds),
        strategies=tuple(
            _compared(name, plans[name], late[name], outcomes[name]) for name in strategies if name in plans
        ),
        refused=tuple(Refused(name, str(refused[name])) for name in strategies if name in refused),
    )


def _compared(name: str, plan: Plan, late: tuple[str, ...], outcomes: Mapping[str, UnderTruth]) -> Compared:
    busiest: dict[str, float] = {}
    for _, _, w in plan.placements():
        busiest[w.name] = max(busiest.get(w.name, 0.0), w.predicted.utilisation or 0.0)
    use = list(busiest.values())
    return Compared(
        name=name,
        gpus=len(plan.gpus),
        types=dict(sorted(Counter(gpu.type for gpu in plan.gpus).items())),
        cost_per_hour=sum(gpu.price_per_hour for gpu in plan.gpus),
        share_percent=sum(gpu.percent for gpu in plan.gpus),
        planning_ms=(plan.totals.planning_ms if plan.totals is not None else None) or 0.0,
        infeasible=tuple(one.workload for one in plan.infeasible),
        predicted_late=late,
        utilisation=Utilisation(float(np.median(use)), max(use)) if use else None,
        truths=outcomes,
    )


def _plan(question: Question, strategy: str) -> tuple[Plan, tuple[str, ...]]:
    """Plan, in a process of its own; also return the workloads that the default latency model finds late."""
    spec, document = read_spec(question.spec)
    cores = len(os.sched_getaffinity(0))
    clock = SystemClock()
    choices = Choices(strategy, PlanSettings(seed=question.seed))
    plan = make_plan(spec, document, choices, profiles=question.profiles, cores=cores, clock=clock).plan
    believed = replace(plan, latency_model=latency_registry.DEFAULT)
    return plan, predicted_late(plan, devices_of(believed, question.profiles))


def predicted_late(plan: Plan, devices: Mapping[str, PlanningDevice]) -> tuple[str, ...]:
    """Return the workloads of a plan whose P99 is expected to exceed their SLO, by these devices' models."""
    late: dict[str, None] = {}
    for one in judge(plan.gpus, devices, Terms(Rule.P99, _QUANTILE)):
        overloaded = one.rate_rps > one.capacity_rps * (1.0 + SLACK)
        late.update(
            {w.name: None for w in one.workloads if overloaded or one.p99_ms > w.slo_ms * (1.0 + SLACK)}
        )
    return tuple(late)


def _simulate(question: Question, plan: Plan, world: World) -> UnderTruth:
    """Simulate one plan under one truth, in a process of its own."""
    kinds = sorted({gpu.type for gpu in plan.gpus})
    models = {
        kind: _model(world.model or plan.latency_model, kind, question.profiles, world.factor)
        for kind in kinds
    }
    measured = {kind: _profiles(kind, question.profiles) for kind in kinds}
    settings = Settings(question.seconds, question.seed, _demands(plan, world))
    result = simulate(plan, models, settings, conditions_of(measured))
    requests = sum(w.requests for w in result.workloads)
    late = sum(w.requests * w.violations_percent for w in result.workloads)
    power_w = sum(gpu.power_w for gpu in result.gpus)
    return UnderTruth(
        late=tuple(w.name for w in result.workloads if not w.holds),
        late_percent=late / requests if requests else 0.0,
        power_w=power_w or None,
    )


def _demands(plan: Plan, world: World) -> dict[str, Demand]:
    """Return the arrivals that differ from the plan's own."""
    if world.burstiness is None:
        return {}
    gaps = Gaps.GAMMA if world.burstiness else Gaps.CONSTANT
    rates = request_rates(plan)
    return {name: Demand(rate, gaps, world.burstiness or 1.0) for name, rate in rates.items()}


@functools.cache
def _model(name: str, kind: str, profiles: Path, factor: float) -> LatencyModel:
    """Return a latency model of a GPU type; a process that simulates several plans fits it once."""
    if factor != 1.0:
        return Scaled(_model(name, kind, profiles, 1.0), factor)
    return latency_registry.build(name, known_device(kind, profiles), _profiles(kind, profiles))


_profiles = functools.cache(known_profiles)
