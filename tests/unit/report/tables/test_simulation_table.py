"""What the table of a simulation says below its lines."""

from __future__ import annotations

import io

from rich.console import Console

from controlplane.report.tables.simulation_table import simulation_table
from controlplane.simulate.result import SimulationResult


def test_it_says_why_its_p99_is_below_that_of_the_plan() -> None:
    for quantile, there in ((0.95, True), (None, False)):
        console = Console(file=io.StringIO(), width=200, highlight=False)
        console.print(simulation_table(SimulationResult(1, 10.0, (), ()), quantile))
        assert isinstance(console.file, io.StringIO)
        assert ("the plan's P99 has them at their 95 % quantile" in console.file.getvalue()) is there
