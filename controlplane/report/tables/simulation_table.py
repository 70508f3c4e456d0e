"""The table of a simulation."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.text import Text

from controlplane.domain.device import noun_of
from controlplane.report.tables.terminal import table_of
from controlplane.report.words import at_quantile
from controlplane.simulate.result import SimulationResult


def simulation_table(result: SimulationResult, planned_at: float | None = None) -> RenderableType:
    """Return one line for each workload and GPU; `planned_at` is the quantile of the plan's predictions."""
    workloads = table_of(
        "workload, >requests, >P50 ms, >P99 ms, >SLO ms, >late %, >drops %, >goodput/s, >use, ~holds"
    )
    for w in result.workloads:
        workloads.add_row(
            w.name,
            str(w.requests),
            _ms(w.p50_ms),
            _ms(w.p99_ms),
            f"{w.slo_ms:g}",
            f"{w.violations_percent:.2f}",
            f"{w.drops_percent:.2f}",
            f"{w.goodput_rps:.1f}",
            f"{w.utilisation:.2f}",
            "yes" if w.holds else "no",
        )
    kinds = {noun_of(g.id) for g in result.gpus}
    gpus = table_of(f"{kinds.pop() if len(kinds) == 1 else 'device'}, >busy %, >power W")
    for g in result.gpus:
        gpus.add_row(g.id, f"{g.busy_percent:.0f}", f"{g.power_w:.0f}" if g.power_w else "–")
    held = len(result.workloads) - result.breaks
    line = f"{held} of {len(result.workloads)} hold their P99 over {result.seconds:g} s (seed {result.seed})"
    lines = [
        Text(line),
        Text("use: rate over capacity; busy: the time in which any server of a device runs a batch"),
    ]
    if planned_at is not None:
        planned = f"the plan's P99 has them at their {at_quantile(planned_at)}"
        lines.append(Text(f"executions take their median time here; {planned}"))
    return Group(workloads, Text(), gpus, Text(), *lines)


def _ms(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1f}"
