"""Rates from a source in place of those of a spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.observation import RateSeen
from controlplane.domain.spec import GpuRequest, Spec
from controlplane.domain.workload import Workload
from controlplane.files.fleets import FleetFiles, state_root
from controlplane.files.following.rates import RatesSeen, write_rates
from controlplane.runtime.jobs.rates import with_rates

pytestmark = pytest.mark.unit

SPEC = Spec((GpuRequest("cpu"),), tuple(Workload(n, "m", 100.0, 10.0, n) for n in ("seen", "new")))


def test_the_forecast_of_a_fleet_replaces_what_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    files = FleetFiles(state_root(), "f")
    files.directory.mkdir(parents=True)
    seen = RateSeen("seen", 10.0, 40.0, 38.0, 42.5, 1.0, False)
    write_rates(files.rates, RatesSeen(0.0, "yes", (seen,)))
    told = list[str]()
    found = with_rates(SPEC, "fleet:f", told.append)
    assert {w.name: w.rate_rps for w in found.workloads} == {"seen": 42.5, "new": 10.0}
    assert told == ["the rates of the spec, since fleet 'f' has none: new"]


@pytest.mark.parametrize("source", ["fleet:nothing", "fleet:", "f", "prometheus:http://x"])
def test_a_source_without_rates_is_refused(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(InputError, match="--rates: "):
        with_rates(SPEC, source, print)
