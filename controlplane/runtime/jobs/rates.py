"""Rates from a source in place of those of a spec: a fleet's controller, or a Prometheus server."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from controlplane.domain import units
from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.workload import MAX_DISPERSION, Arrivals, Spec
from controlplane.files.fleets import FleetFiles, state_root
from controlplane.files.following import read_rates

LABELS = ("workload", "endpoint", "model")
"""The labels that may name a workload, best first."""
_TIMEOUT_S = 10.0


def of_prometheus(url: str, text: str) -> Mapping[str, float]:
    """Return the value of each series by what its label names.

    Raises InputError for a URL or query that cannot be used, EngineError where the server does not answer.
    """
    import httpx

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"{url!r} is not the URL of a Prometheus server", field="--rates")
    if parts.username is not None or parts.password is not None:
        raise InputError("must hold no credentials: everyone sees a command line", field="--rates")
    try:
        answer = httpx.get(f"{url.rstrip('/')}/api/v1/query", params={"query": text}, timeout=_TIMEOUT_S)
        content: Any = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise EngineError(f"{parts.hostname}: no answer to a query: {error!r}") from error
    if not isinstance(content, dict) or content.get("status") != "success":
        problem = content.get("error") if isinstance(content, dict) else None
        raise InputError(f"the server refuses it: {problem or answer.status_code}", field="--query")
    data = content.get("data")
    if not isinstance(data, dict) or data.get("resultType") != "vector":
        raise InputError("must give an instant vector, one value a workload", field="--query")
    rates: dict[str, float] = {}
    for series in data["result"]:
        name = next((series["metric"][label] for label in LABELS if label in series["metric"]), None)
        if name is None:
            labels = ", ".join(LABELS[:-1])
            raise InputError(
                f"must keep one of the labels {labels} and {LABELS[-1]}: `sum by (endpoint) (...)`",
                field="--query",
            )
        if name in rates:
            raise InputError(f"gives {name!r} twice; sum the series", field="--query")
        value = float(series["value"][1])
        if math.isfinite(value) and value > 0.0:
            rates[name] = value
    return rates


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
    if query is None:
        known = _of_fleet(place)
    else:
        known = {name: _Load(rate) for name, rate in of_prometheus(place, query).items()}
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
    workloads = []
    for workload in spec.workloads:
        if (load := found[workload.name]) is not None:
            workload = replace(workload, rate_rps=load.rate_rps)
            if load.dispersion is not None:
                workload = replace(workload, arrivals=Arrivals.POISSON, dispersion=load.dispersion)
        workloads.append(workload)
    return replace(spec, workloads=tuple(workloads))


@dataclass(frozen=True, slots=True)
class _Load:
    """A rate, and a dispersion where one was seen."""

    rate_rps: float
    dispersion: float | None = None


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
