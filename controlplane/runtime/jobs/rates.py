"""Rates from a source in place of those of a spec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from controlplane.domain import units
from controlplane.domain.errors import InputError
from controlplane.domain.spec import Spec
from controlplane.files.fleets import FleetFiles, state_root
from controlplane.files.following.rates import read_rates

_FLEET = "fleet"


def with_rates(spec: Spec, source: str, say: Callable[[str], None]) -> Spec:
    """The spec with the rates that `source` forecasts (`fleet:NAME`); says which workloads keep their own.

    Raises InputError for an unknown source, and for a fleet whose load nothing has seen.
    """
    kind, _, name = source.partition(":")
    if kind != _FLEET or not name:
        raise InputError(f"{source!r} is no source of rates; name a fleet as fleet:NAME", field="--rates")
    seen = read_rates(FleetFiles(state_root(), units.safe_name(name, "--rates")).rates)
    if seen is None:
        raise InputError(f"no controller of fleet {name!r} has seen its load", field="--rates")
    # An idle workload has an upper bound too, so every known rate is positive.
    known = {rate.workload: rate.upper_rps for rate in seen.rates if rate.upper_rps}
    if own := [w.name for w in spec.workloads if w.name not in known]:
        say(f"the rates of the spec, since fleet {name!r} has none: {', '.join(own)}")
    return replace(
        spec,
        workloads=tuple(replace(w, rate_rps=known.get(w.name) or w.rate_rps) for w in spec.workloads),
    )
