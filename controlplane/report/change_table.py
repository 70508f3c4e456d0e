"""What a plan changes about the one before."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controlplane.domain.plan import Plan
from controlplane.domain.workload import Workload
from controlplane.planners.replan.differences import Place, changes, endings, feasibility, moves, terms
from controlplane.report.ending_line import ending_line
from controlplane.report.plan_table import counted, names


def change_table(before: Plan, after: Plan, wanted: Sequence[Workload] = ()) -> RenderableType:
    """One line for each thing that happens to a partition, then for what a workload asks for differently.

    Before them those for endpoints that end. `wanted`: what the plan after was asked for.
    """
    found, asked = changes(before, after), terms(before, after, wanted)
    lost, regained = feasibility(before, after)
    if not (found or asked or lost or regained):
        return Text("\nnothing changes")
    partitions = counted(len({c.partition for c in found}), "partition")
    parts: list[RenderableType] = []
    if ended := endings(before, after):
        parts.append(Text("\n" + "\n".join(map(ending_line, ended)), style="bold"))
    parts.append(Text(f"\n{partitions} changed, {moves(before, after)} started or moved"))
    if found:
        rows = [
            (c.change.value, c.partition, _told(c.before), _told(c.after), names(c.workloads)) for c in found
        ]
        parts.append(_table(("change", "partition", "before", "after", "workloads"), rows))
    if asked:
        workloads = counted(len({c.workload for c in asked}), "workload")
        parts.append(Text(f"\nasked for differently: {workloads}"))
        values = [(c.workload, c.field, _value(c.before), _value(c.after)) for c in asked]
        parts.append(_table(("workload", "field", "before", "after"), values))
    if lost:
        parts.append(Text(f"\nserved before, infeasible now: {', '.join(lost)}"))
    if regained:
        # No terms of these: a plan holds only those of what it serves.
        parts.append(Text(f"\ninfeasible before, served now: {', '.join(regained)}"))
    return Group(*parts)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _told(place: Place | None) -> str:
    if place is None:
        return "–"
    gpu, percent, batches = place
    return f"{percent:g} % of {gpu}, batch {'+'.join(map(str, batches))}"
