"""One simulation from a plan and the options of the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from controlplane.control.order import order_of
from controlplane.domain.device import Device
from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan
from controlplane.domain.profile import Profile
from controlplane.domain.workload import Arrivals
from controlplane.files.documents import read_text
from controlplane.files.measurements.profiles import read_profiles
from controlplane.files.mistakes import nearest
from controlplane.latency import registry
from controlplane.latency.protocol import LatencyModel
from controlplane.runtime.devices import known_device, known_profiles
from controlplane.simulate.arrivals import Demand, Trace, read_trace
from controlplane.simulate.closed_loop.faults import Fault, WithAndWithout
from controlplane.simulate.engine import Scaled, Settings, simulate
from controlplane.simulate.network import Conditions, noise_of
from controlplane.simulate.result import SimulationResult

_MAX_REQUESTS = 1e9
"""These take some minutes."""
_SCALED = re.compile(r"(?P<name>[^*]+)\*(?P<factor>[0-9]+\.?[0-9]*|\.[0-9]+)")


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of a simulation.

    `truth` is a latency model's name, `NAME*1.1` for one 10 % slower, or a folder of profiles; None: the
    plan's own model. `arrivals` holds `poisson`, `constant` or a trace's file, each for all workloads or as
    `WORKLOAD=...`. `overtake_ms`: the gateway binds late, with this overtaking time; without it only
    where the plan relies on that.
    """

    profiles: Path
    truth: str | None
    arrivals: Sequence[str]
    seconds: float
    seed: int
    overtake_ms: int | None = None


def run(plan: Plan, asked: Asked) -> SimulationResult:
    """Simulate a plan with the profiles' jitter and front-end time. Raises InputError naming the option."""
    return simulate(plan, *_world(plan, asked))


def with_guard(plan: Plan, asked: Asked, faults: Sequence[Fault]) -> WithAndWithout:
    """Simulate a plan's fleet with its faults twice: with the guard, and without. Raises as `run` does."""
    from controlplane.simulate.closed_loop.run import run as serve  # imports numba

    models, settings, conditions = _world(plan, asked)
    guarded, alone = (
        serve(plan, models, settings, conditions, faults, guard=guard) for guard in (True, False)
    )
    return WithAndWithout(asked.seed, asked.seconds, guarded, alone)


def _world(plan: Plan, asked: Asked) -> tuple[dict[str, LatencyModel], Settings, Conditions]:
    """Return the truth by GPU type, the requests, and what is in no plan."""
    seconds = asked.seconds
    expected = sum(request_rates(plan).values()) * seconds
    if expected > _MAX_REQUESTS:
        raise InputError(
            f"{expected:.3g} requests are too many (the limit is {_MAX_REQUESTS:g}); choose a shorter time",
            field="--seconds",
        )
    types = sorted({gpu.type for gpu in plan.gpus})
    measured = {kind: known_profiles(kind, asked.profiles) for kind in types}
    settings = Settings(seconds, asked.seed, _demands(plan, asked.arrivals))
    kinds = {kind: known_device(kind, asked.profiles) for kind in types}
    models = {kind: _truth(asked.truth, plan, kinds[kind], measured[kind]) for kind in types}
    conditions = replace(conditions_of(measured), order=order_of(plan, asked.overtake_ms))
    return models, settings, conditions


def request_rates(plan: Plan) -> dict[str, float]:
    """Return the planned requests per second of each workload, over all its servers."""
    rates: dict[str, float] = {}
    for _, _, placement in plan.placements():
        rates[placement.name] = rates.get(placement.name, 0.0) + placement.requests_rps
    return rates


def conditions_of(measured: Mapping[str, Mapping[str, Profile]]) -> Conditions:
    """Return the jitter, front-end times and batch limits of profiles, by GPU type and model."""
    most = {p.model: p.max_batch for found in measured.values() for p in found.values() if p.max_batch}
    return Conditions(noise=noise_of(measured), max_batch=most)


def _truth(option: str | None, plan: Plan, device: Device, profiles: Mapping[str, Profile]) -> LatencyModel:
    kind = device.name
    name, factor = option or plan.latency_model, 1.0
    if option is not None and Path(option).is_dir():
        if not read_profiles(Path(option), kind):
            raise InputError(f"has no profile of {kind}", file=option, field="--truth")
        theirs = known_device(kind, Path(option))
        return registry.build(registry.DEFAULT, theirs, known_profiles(kind, Path(option)))
    if (scaled := _SCALED.fullmatch(name)) is not None:
        name, factor = scaled["name"], float(scaled["factor"])
    if name not in registry.FITS:
        raise InputError(
            f"{name!r} is neither a latency model nor a folder of profiles{nearest(name, registry.FITS)}",
            field="--truth",
        )
    model = registry.build(name, device, profiles)
    return model if factor == 1.0 else Scaled(model, factor)


def _demands(plan: Plan, arrivals: Sequence[str]) -> dict[str, Demand | Trace]:
    rates, demands = request_rates(plan), dict[str, Demand | Trace]()
    for option in arrivals:
        name, separator, what = option.rpartition("=")
        if separator and name not in rates:
            raise InputError(f"the plan has no workload {name!r}{nearest(name, rates)}", field="--arrivals")
        named = [name] if separator else list(rates)
        if what in set(Arrivals):
            demands |= {workload: Demand.of(Arrivals(what), rates[workload]) for workload in named}
        elif Path(what).is_file():
            demands |= dict.fromkeys(named, read_trace(read_text(Path(what)), what))
        else:
            kinds = " nor ".join(repr(str(a)) for a in Arrivals)
            raise InputError(f"{what!r} is neither {kinds} nor a file", field="--arrivals")
    return demands
