"""The table and the JSON of `ctl compare`."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from controlplane.domain.comparison import Compared, Comparison, Truth
from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.report.tables.plan_table import number
from controlplane.report.tables.terminal import table_of


def comparison_table(found: Comparison) -> RenderableType:
    """Return one line for each strategy, with the late workloads under each truth."""
    powered = any(_power_w(s, t) is not None for s in found.strategies for t in found.truths)
    table = table_of(
        f"strategy, >{found.noun}s, >cost/h, >not served, >planned in s, >use, >predicted late, "
        + ", ".join(f">{t.title[0].lower()}{t.title[1:]}" for t in found.truths)
        + (", >power W" if powered else "")
    )
    for one in found.strategies:
        cells = [
            one.strategy,
            str(one.gpus),
            number(one.cost_per_hour if found.priced else None, 2),
            str(len(one.infeasible)),
            number(one.planning_ms / MILLIS_PER_SECOND, 2),
            "–" if one.utilisation is None else f"{one.utilisation[0]:.2f}/{one.utilisation[1]:.2f}",
            str(len(one.predicted_late)),
            *(str(len(one.outcomes[t.name].late)) for t in found.truths),
        ]
        table.add_row(*cells, *([number(_power_w(one, found.truths[0]), 0)] if powered else []))
    lines = [
        *(f"{name} cannot plan this: {reason}" for name, reason in found.refused),
        f"{found.workloads} workloads; late: more than 1 % of the requests above the SLO, simulated for "
        f"{found.seconds:g} s (seed {found.seed}); use: median/largest",
        *(f"{t.title}: {t.meaning}" for t in found.truths),
    ]
    return Group(table, Text(), *map(Text, lines))


def comparison_document(found: Comparison) -> dict[str, Any]:
    """Return the JSON of `ctl compare`."""
    return {
        "workloads": found.workloads,
        "noun": found.noun,
        "priced": found.priced,
        "seconds": found.seconds,
        "seed": found.seed,
        "truths": [{"name": t.name, "title": t.title, "meaning": t.meaning} for t in found.truths],
        "refused": [{"name": name, "reason": reason} for name, reason in found.refused],
        "strategies": [_strategy(one, found.truths) for one in found.strategies],
    }


def _strategy(one: Compared, truths: tuple[Truth, ...]) -> dict[str, Any]:
    return {
        "name": one.strategy,
        "gpus": one.gpus,
        "cost_per_hour": one.cost_per_hour,
        "share_percent": one.share_percent,
        "planning_ms": one.planning_ms,
        "infeasible": list(one.infeasible),
        "predicted_late": list(one.predicted_late),
        "utilisation": None
        if one.utilisation is None
        else {"median": one.utilisation[0], "largest": one.utilisation[1]},
        "truths": {
            t.name: {
                "late": list(one.outcomes[t.name].late),
                "late_percent": one.outcomes[t.name].late_percent,
                "power_w": one.outcomes[t.name].power_w,
            }
            for t in truths
        },
    }


def _power_w(one: Compared, truth: Truth) -> float | None:
    return one.outcomes[truth.name].power_w
