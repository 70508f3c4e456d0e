"""The load in `ctl status`."""

from __future__ import annotations

import io

from rich.console import Console

from controlplane.domain.observation import RateSeen
from controlplane.report.tables.status_table import LoadView, load_table

VIEW = LoadView(
    "yes",
    (
        RateSeen("steady", 100.0, 96.0, 94.0, 98.5, 1.04, False),
        RateSeen("bursty", 20.0, 31.0, 27.0, 35.0, 4.2, True),
        RateSeen("unseen", 5.0, None, None, None, 1.0, False),
    ),
)


def test_planned_seen_and_forecast_rates_stand_side_by_side() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=False, color_system=None)
    console.print(load_table(VIEW))
    assert isinstance(console.file, io.StringIO)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert rows[1] == ["steady", "100.0", "96.0", "94.0", "to", "98.5", "Poisson,", "dispersion", "1.0"]
    assert rows[2] == ["bursty", "20.0", "31.0", "27.0", "to", "35.0", "bursty,", "dispersion", "4.2"]
    assert rows[3] == ["unseen", "5.0", "–", "–", "–"]
