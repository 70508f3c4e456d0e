"""The table of a fleet's faults, with and without the guard."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from controlplane.report.tables.terminal import table_of
from controlplane.simulate.closed_loop.faults import WithAndWithout

_MOST_EVENTS = 20


def guard_table(found: WithAndWithout) -> RenderableType:
    """Return a line for each fault, a line for each workload, and what the guard did."""
    guarded, without = found.guarded, found.alone
    parts: list[RenderableType] = []
    if guarded.repairs:
        faults = table_of("fault, >redirected after s, >late s with the guard, >late s without")
        for with_guard, bare in zip(guarded.repairs, without.repairs, strict=True):
            after = with_guard.redirected_s
            faults.add_row(
                str(with_guard.fault),
                "–" if after is None else f"{after:.1f}",
                str(with_guard.late_s),
                str(bare.late_s),
            )
        parts += [faults, Text()]
    workloads = table_of(
        "workload, >requests, >SLO ms, >late % with the guard, >late % without, holds, holds without"
    )
    for one, alone in zip(guarded.workloads, without.workloads, strict=True):
        workloads.add_row(
            one.name,
            f"{one.sent.sum():.0f}",
            f"{one.slo_ms:g}",
            f"{one.late_percent:.2f}",
            f"{alone.late_percent:.2f}",
            "yes" if one.holds else "no",
            "yes" if alone.holds else "no",
        )
    parts += [workloads, Text()]
    # A redirect has a message as well, which gives the reason.
    messages = [event for event in guarded.happened if not event.redirect]
    if messages:
        events = table_of(">at s, subject, what the guard did")
        events.columns[-1].no_wrap = False
        for event in messages[:_MOST_EVENTS]:
            events.add_row(f"{event.at_s:.1f}", event.subject, event.text)
        parts += [events, Text()]
        if len(messages) > _MOST_EVENTS:
            parts.append(Text(f"and {len(messages) - _MOST_EVENTS} more; --json has all"))
    count, alone_held = len(guarded.workloads), sum(one.holds for one in without.workloads)
    held = f"{count - found.breaks} of {count} hold their P99 over {found.seconds:g} s with the guard"
    parts.append(Text(f"{held}, {alone_held} without (seed {found.seed})"))
    if guarded.repairs:
        parts.append(Text("a second is late where over a tenth of its requests is above the SLO or lost"))
    return Group(*parts)
