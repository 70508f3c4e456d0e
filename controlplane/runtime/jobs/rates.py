"""Rates from a source in place of those of a spec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from controlplane.domain import units
from controlplane.domain.errors import InputError
from controlplane.domain.spec import Spec
from controlplane.domain.workload import MAX_DISPERSION, Arrivals, Workload
from controlplane.files.fleets import FleetFiles, state_root
from controlplane.files.following import read_rates

_FLEET, _PROMETHEUS = "fleet", "prometheus"


def with_rates(spec: Spec, source: str, query: str | None, say: Callable[[str], None]) -> Spec:
    """The spec with the rates of a source; says which workloads keep their own.

    `fleet:NAME` gives the upper bounds that a fleet's controller forecasts and the dispersion of bursty
    arrivals, `prometheus:URL` what `query` gives by workload, endpoint or model. Raises InputError for an
    unknown source, and for a fleet whose load nothing has seen; EngineError where Prometheus does not answer.
    """
    kind, _, place = source.partition(":")
    if kind not in (_FLEET, _PROMETHEUS) or not place:
        raise InputError(f"{source!r} is no source: give fleet:NAME or prometheus:URL", field="--rates")
    if (kind == _PROMETHEUS) != (query is not None):
        raise InputError("belongs to --rates prometheus:URL, which needs it", field="--query")
    known = _of_fleet(place) if query is None else _of_prometheus(place, query)
    models = Counter(w.model for w in spec.workloads)
    found = {
        # The rate of a model is that of a workload only where no other one has the model.
        w.name: known.get(w.name)
        or known.get(w.endpoint or w.name)
        or (known.get(w.model) if models[w.model] == 1 else None)
        for w in spec.workloads
    }
    if own := [w.name for w in spec.workloads if found[w.name] is None]:
        say(f"the rates of the spec, since {kind} has none: {', '.join(own)}")
    return replace(spec, workloads=tuple(_with_load(w, found[w.name]) for w in spec.workloads))


@dataclass(frozen=True, slots=True)
class _Load:
    """A rate, and a dispersion where one was seen."""

    rate_rps: float
    dispersion: float | None = None


def _with_load(workload: Workload, load: _Load | None) -> Workload:
    if load is None:
        return workload
    seen = replace(workload, rate_rps=load.rate_rps)
    if load.dispersion is None:
        return seen
    return replace(seen, arrivals=Arrivals.POISSON, dispersion=load.dispersion)


def _of_fleet(name: str) -> Mapping[str, _Load]:
    """Upper bounds by workload; an idle one has one too, so every known rate is positive.

    Where arrivals are bursty, the dispersion says so instead of a higher rate.
    """
    seen = read_rates(FleetFiles(state_root(), units.safe_name(name, "--rates")).rates)
    if seen is None:
        raise InputError(f"no controller of fleet {name!r} has seen its load", field="--rates")
    return {
        rate.workload: _Load(rate.upper_rps - rate.bursts_rps, min(rate.dispersion, MAX_DISPERSION))
        if rate.bursty
        else _Load(rate.upper_rps)
        for rate in seen.rates
        if rate.upper_rps
    }


def _of_prometheus(url: str, query: str) -> Mapping[str, _Load]:
    from controlplane.runtime.jobs import prometheus  # brings httpx

    return {name: _Load(rate) for name, rate in prometheus.query(url, query).items()}
