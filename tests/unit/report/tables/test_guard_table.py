"""The table of a fleet's faults."""

from __future__ import annotations

import io

import numpy as np
from rich.console import Console

from controlplane.report.tables.guard_table import guard_table
from controlplane.simulate.closed_loop.faults import Happened, Outcome, WithAndWithout, WorkloadSeen

REASON = (
    "slow server (a: batches take longer than they did): redirected to fleet.a.shadow.1, 22.5 % of v100-1"
)


def test_a_narrow_terminal_shows_when_what_and_why_once() -> None:
    seen = WorkloadSeen("images", 40.0, ("a",), np.full(10, 100.0), np.zeros(10))
    happened = (
        Happened(3600.4, "a", "slow server: redirected to fleet.a.shadow.1", redirect=True),
        Happened(3600.4, "a", REASON),
    )
    outcome = Outcome((seen,), (), happened)
    console = Console(file=io.StringIO(), width=80)
    console.print(guard_table(WithAndWithout(1, 10.0, outcome, outcome)))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("3600.4"))
    assert REASON in " ".join(" ".join(lines[begin : begin + 3]).split())
    assert sum("3600.4" in line for line in lines) == 1
