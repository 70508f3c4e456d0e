"""The table of the load in `ctl status`."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from controlplane.domain.observation import RateSeen
from controlplane.report.tables.terminal import table_of
from controlplane.report.words import number


@dataclass(frozen=True, slots=True)
class LoadView:
    """The load of a fleet. `following` says whether its plan follows the load, and otherwise why not."""

    following: str
    workloads: tuple[RateSeen, ...] = ()


def load_table(view: LoadView) -> Table:
    """Return one line for each workload: the rates planned, seen and forecast, and how bursty they are."""
    table = table_of("workload, >planned/s, >seen/s, >forecast/s, arrivals")
    for rate in view.workloads:
        known = rate.level_rps is not None
        forecast = f"{number(rate.lower_rps)} to {number(rate.upper_rps)}" if known else "–"
        kind = "bursty" if rate.bursty else "Poisson"
        arrivals = f"{kind}, dispersion {rate.dispersion:.1f}" if known else "–"
        table.add_row(rate.workload, number(rate.planned_rps), number(rate.level_rps), forecast, arrivals)
    return table
