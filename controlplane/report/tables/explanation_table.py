"""The table of `ctl show --explain`."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controlplane.domain.plan import Infeasible
from controlplane.domain.units import spoken
from controlplane.planning.explain.explain import Explanation
from controlplane.report.tables.terminal import table_of
from controlplane.report.words import number


def explanation_table(found: tuple[Explanation, ...] | Infeasible) -> RenderableType:
    """Return the planned share and batch of each partition beside the alternatives, and the reasons."""
    if isinstance(found, Infeasible):
        return Text(f"\n{found.workload} is infeasible: {found.reason}")
    parts: list[RenderableType] = []
    for explanation in found:
        parts += [_one(explanation), *(Text(f"  {reason}") for reason in explanation.reasons)]
    return Group(*parts)


def _one(explanation: Explanation) -> Table:
    beside = f", beside {', '.join(explanation.neighbours)}" if explanation.neighbours else ", alone"
    table = table_of(", >share %, >batch, >exec ms, >P99 ms, >use, holds")
    table.title_justify = "left"
    table.title = (
        f"\n{explanation.workload} (held to {explanation.slo_ms:g} ms) in {explanation.partition} on "
        f"{explanation.gpu}{beside}"
    )
    for a in explanation.alternatives:
        holds = "yes" if a.holds else f"no: {', '.join(a.breaks)}"
        table.add_row(
            a.what,
            spoken(a.percent),
            str(a.batch),
            number(a.execution_ms),
            number(a.p99_ms),
            number(a.utilisation, 2),
            holds,
        )
    return table
