"""What a plan changes about the one before."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from controlplane.domain.plan import Plan
from controlplane.planners.changes import changes, moves
from controlplane.report.plan_table import counted, names


def change_table(before: Plan, after: Plan) -> RenderableType:
    """One line for each thing that happens to a partition."""
    found = changes(before, after)
    if not found:
        return Text("\nnothing changes")
    table = Table(
        box=None, pad_edge=False, header_style="bold", title_justify="left",
        title=f"\n{counted(len({c.partition for c in found}), 'partition')} changed, "
        f"{moves(before, after)} moved",
    )  # fmt: skip
    for name in ("change", "partition", "before", "after", "workloads"):
        table.add_column(name, no_wrap=True)
    for change in found:
        table.add_row(
            change.change.value, change.partition, _told(change.before), _told(change.after),
            names(change.workloads),
        )  # fmt: skip
    return table


def _told(place: tuple[str, float, int] | None) -> str:
    return "–" if place is None else f"{place[1]:g} % of {place[0]}, batch {place[2]}"
