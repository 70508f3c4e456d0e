"""What a plan changes about the one before."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controlplane.domain.plan import Plan
from controlplane.planners.changes import changes, moves, terms
from controlplane.report.plan_table import counted, names


def change_table(before: Plan, after: Plan) -> RenderableType:
    """One line for each thing that happens to a partition, then for what a workload asks for differently."""
    found, asked = changes(before, after), terms(before, after)
    if not found and not asked:
        return Text("\nnothing changes")
    partitions = counted(len({c.partition for c in found}), "partition")
    parts: list[RenderableType] = [Text(f"\n{partitions} changed, {moves(before, after)} moved")]
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


def _told(place: tuple[str, float, int] | None) -> str:
    return "–" if place is None else f"{place[1]:g} % of {place[0]}, batch {place[2]}"
