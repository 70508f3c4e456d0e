"""The tables of `ctl simulate`: of a plan under load, and of its faults with and without the guard."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from controlplane.domain.device import noun_of
from controlplane.report.tables.terminal import table_of
from controlplane.report.words import at_quantile, number
from controlplane.simulate.closed_loop.faults import WithAndWithout
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
            number(w.p50_ms),
            number(w.p99_ms),
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
        gpus.add_row(g.id, f"{g.busy_percent:.0f}", number(g.power_w or None, 0))
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


_MOST_EVENTS = 20


def guard_table(found: WithAndWithout) -> RenderableType:
    """Return a line for each fault, a line for each workload, and what the guard did."""
    guarded, without = found.guarded, found.alone
    parts: list[RenderableType] = []
    if guarded.repairs:
        faults = table_of("fault, >redirected after s, >late s with the guard, >late s without")
        for with_guard, bare in zip(guarded.repairs, without.repairs, strict=True):
            after = number(with_guard.redirected_s)
            faults.add_row(str(with_guard.fault), after, str(with_guard.late_s), str(bare.late_s))
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
