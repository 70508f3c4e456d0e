"""What changes from one plan to the next: the table, and single lines."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from controlplane.domain.plan import Plan, Shadow
from controlplane.domain.workload import Workload
from controlplane.planning.replan.differences import (
    Ending,
    Place,
    TermChange,
    changes,
    endings,
    feasibility,
    moves,
    shadow_changes,
    terms,
)
from controlplane.report.tables.terminal import table_of
from controlplane.report.words import counted, names


def change_table(before: Plan, after: Plan, wanted: Sequence[Workload] = ()) -> RenderableType:
    """Return what ends, the changes of partitions and their shadows, and those of workloads' terms.

    `wanted` are the workloads of the second plan's spec.
    """
    found, new_terms = changes(before, after), terms(before, after, wanted)
    standing = shadow_changes(before, after)
    lost, regained = feasibility(before, after)
    if not (found or standing or new_terms or lost or regained):
        return Text("\nnothing changes")
    partitions = counted(len({c.partition for c in found}), "partition")
    parts: list[RenderableType] = []
    if ended := endings(before, after):
        parts.append(Text("\n" + "\n".join(map(ending_line, ended)), style="bold"))
    shadows = f"; {counted(len(standing), 'more shadow')} changed" if standing else ""
    parts.append(Text(f"\n{partitions} changed, {moves(before, after)} started or moved{shadows}"))
    if found or standing:
        rows = [
            (c.change.value, c.partition, _text_of(c.before), _text_of(c.after), names(c.workloads))
            for c in found
        ]
        rows += [("shadow", s.partition, _shadow_text(s.before), _shadow_text(s.after), "") for s in standing]
        parts.append(table_of("change, partition, before, after, workloads", rows))
    if new_terms:
        workloads = counted(len({c.workload for c in new_terms}), "workload")
        parts.append(Text(f"\nchanged in the spec: {workloads}"))
        values = [(c.workload, c.field, _value(c.before), _value(c.after)) for c in new_terms]
        parts.append(table_of("workload, field, before, after", values))
    if lost:
        parts.append(Text(f"\nserved before, infeasible now: {', '.join(lost)}"))
    if regained:
        # Their terms are unknown: a plan has terms only for the workloads that it serves.
        parts.append(Text(f"\ninfeasible before, served now: {', '.join(regained)}"))
    return Group(*parts)


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _text_of(place: Place | None) -> str:
    if place is None:
        return "–"
    gpu, percent, batches = place
    return f"{percent:g} % of {gpu}, batch {'+'.join(map(str, batches))}"


def _shadow_text(shadow: Shadow | None) -> str:
    return "–" if shadow is None else f"{shadow.policy}, {shadow.percent:g} % of {shadow.gpu}"


def ending_line(ending: Ending) -> str:
    """Return the warning: which endpoint ends, the workloads' new endpoints, and how to keep the old one."""
    if not ending.heirs:
        return f"endpoint {ending.endpoint} ends: workload {ending.workload} is no longer served"
    renamed = ", ".join(f"workload {name} gets endpoint {endpoint}" for name, endpoint in ending.heirs)
    return (
        f"warning: endpoint {ending.endpoint} ends, its clients will get 404: {renamed}; to keep it, write "
        f"`endpoint: {ending.endpoint}` in the spec's line of {ending.heirs[0][0]}, then plan again"
    )


def terms_line(changed: Sequence[TermChange]) -> str:
    """Return `nothing to do`, with each workload's new and old terms, such as its SLO."""
    if not changed:
        return "nothing to do"
    terms: dict[str, list[str]] = {}
    for one in changed:
        terms.setdefault(one.workload, []).append(f"{one.field} {_value(one.before)} -> {_value(one.after)}")
    listed = "; ".join(f"{workload}: {', '.join(fields)}" for workload, fields in terms.items())
    return f"nothing to do for the servers; changed: {listed}"
