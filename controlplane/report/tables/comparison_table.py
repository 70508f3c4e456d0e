"""Strategies side by side: the document and the table of `ctl compare`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.report.tables.terminal import table_of
from controlplane.report.words import number


@dataclass(frozen=True, slots=True)
class Truth:
    """How a simulated world differs from what a plan believes, in words."""

    name: str
    title: str
    meaning: str


@dataclass(frozen=True, slots=True)
class UnderTruth:
    """A plan under one truth: the late workloads, and the mean power where it is known."""

    late: tuple[str, ...]
    late_percent: float
    power_w: float | None


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Utilisations of a plan's workloads."""

    median: float
    largest: float


@dataclass(frozen=True, slots=True)
class Refused:
    """A strategy that cannot plan the spec, with the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Compared:
    """One strategy's plan, with the GPUs of each type. `predicted_late` by the default latency model."""

    name: str
    gpus: int
    types: Mapping[str, int]
    cost_per_hour: float
    share_percent: float
    planning_ms: float
    infeasible: tuple[str, ...]
    predicted_late: tuple[str, ...]
    utilisation: Utilisation | None
    truths: Mapping[str, UnderTruth]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All strategies and truths of one spec; `prices`: per hour, of one GPU of each type; 0 is unknown."""

    workloads: int
    noun: str
    prices: Mapping[str, float]
    seconds: float
    seed: int
    truths: tuple[Truth, ...]
    refused: tuple[Refused, ...]
    strategies: tuple[Compared, ...]


def comparison_table(found: Comparison) -> RenderableType:
    """Return one line for each strategy, with the late workloads under each truth."""
    powered = any(_power_w(s, t) is not None for s in found.strategies for t in found.truths)
    priced = any(found.prices.values())
    mixed = len({kind for one in found.strategies for kind in one.types}) > 1
    table = table_of(
        f"strategy, >{found.noun}s, "
        + ("types, " if mixed else "")
        + (">cost/h, " if priced else "")
        + ">not served, >planned in s, >use, >predicted late, "
        + ", ".join(f">{t.title[0].lower()}{t.title[1:]}" for t in found.truths)
        + (", >power W" if powered else "")
    )
    for one in found.strategies:
        use = one.utilisation
        cells = [
            one.name,
            str(one.gpus),
            *([", ".join(f"{n} {kind}" for kind, n in one.types.items())] if mixed else []),
            *([number(one.cost_per_hour, 2)] if priced else []),
            str(len(one.infeasible)),
            number(one.planning_ms / MILLIS_PER_SECOND, 2),
            "–" if use is None else f"{use.median:.2f}/{use.largest:.2f}",
            str(len(one.predicted_late)),
            *(str(len(one.truths[t.name].late)) for t in found.truths),
        ]
        table.add_row(*cells, *([number(_power_w(one, found.truths[0]), 0)] if powered else []))
    prices = [f"{kind} {number(price, 2) if price else 'unknown'}" for kind, price in found.prices.items()]
    lines = [
        *(f"{one.name} cannot plan this: {one.reason}" for one in found.refused),
        f"{found.workloads} workloads; late: more than 1 % of the requests above the SLO, simulated for "
        f"{found.seconds:g} s (seed {found.seed}); use: median/largest",
        *([f"price per hour: {', '.join(prices)}"] if priced else []),
        *(f"{t.title}: {t.meaning}" for t in found.truths),
    ]
    return Group(table, Text(), *map(Text, lines))


def _power_w(one: Compared, truth: Truth) -> float | None:
    return one.truths[truth.name].power_w
