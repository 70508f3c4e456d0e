"""The table of a fleet's faults."""

import io
import re

import numpy as np
from rich.console import Console

from controlplane.domain.observation import RateSeen
from controlplane.report.tables.observed_table import validation_table
from controlplane.report.tables.simulation_table import guard_table, simulation_table
from controlplane.report.tables.status_table import LoadView, load_table
from controlplane.report.tables.terminal import plain
from controlplane.simulate.closed_loop.faults import Happened, Outcome, WithAndWithout, WorkloadSeen
from controlplane.simulate.result import SimulationResult

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
    out = io.StringIO()
    Console(file=out, width=80).print(guard_table(WithAndWithout(1, 10.0, outcome, outcome)))
    lines = out.getvalue().splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("3600.4"))
    assert REASON in " ".join(" ".join(lines[begin : begin + 3]).split())
    assert sum("3600.4" in line for line in lines) == 1


def test_it_says_why_its_p99_is_below_that_of_the_plan() -> None:
    for quantile, there in ((0.95, True), (None, False)):
        shown = plain(simulation_table(SimulationResult(1, 10.0, (), ()), quantile))
        assert ("the plan's P99 has them at their 95 % quantile" in shown) is there


VIEW = LoadView(
    "yes",
    (
        RateSeen("steady", 100.0, 96.0, 94.0, 98.5, 1.04, False),
        RateSeen("bursty", 20.0, 31.0, 27.0, 35.0, 4.2, True),
        RateSeen("unseen", 5.0, None, None, None, 1.0, False),
    ),
)


def test_planned_seen_and_forecast_rates_stand_side_by_side() -> None:
    rows = [line.split() for line in plain(load_table(VIEW)).splitlines()]
    assert rows[1] == ["steady", "100.0", "96.0", "94.0", "to", "98.5", "Poisson,", "dispersion", "1.0"]
    assert rows[2] == ["bursty", "20.0", "31.0", "27.0", "to", "35.0", "bursty,", "dispersion", "4.2"]
    assert rows[3] == ["unseen", "5.0", "–", "–", "–"]


def test_of_many_models_the_worst_come_first_and_the_best_not_at_all() -> None:
    def figures(error: float) -> dict[str, float]:
        shares = dict.fromkeys(("bias_percent", "p95_percent", "max_percent", "coverage_95_percent"), 0.0)
        return {"n": 3, "mape_percent": error} | shares

    models = {f"m{n:02}": figures(float(n)) for n in range(12)}
    assessed = {"overall": figures(5.5), "per_model": models, "per_kind": {"alone": figures(5.5)}}
    lines = plain(validation_table({"latency_models": {"ours": assessed}})).splitlines()
    assert re.findall(r"m\d\d", "".join(lines)) == [f"m{n:02}" for n in range(11, 1, -1)]
