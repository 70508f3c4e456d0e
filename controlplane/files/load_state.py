"""What a controller knows about the load of its fleet: a file that the next controller goes on from.

Only the steps of a stretch are kept: older ones count no more. `null` is what was not seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from controlplane.control.autoscaler.days import DAYS, PARTS, Days
from controlplane.control.autoscaler.rates import KEPT, Rates
from controlplane.control.autoscaler.state import FollowedWorkload, LoadLimits, LoadState
from controlplane.files.documents import read
from controlplane.files.writing import fields_of, to_compact_json, write_derived

_VERSION = 1

_Numbers = list[float | None]


@dataclass(frozen=True, slots=True)
class _Rates:
    counts: list[_Numbers]
    dispersion: list[float]


@dataclass(frozen=True, slots=True)
class _Days:
    rates: list[list[_Numbers]]
    part: int
    requests: list[float]
    seconds: list[float]


@dataclass(frozen=True, slots=True)
class _File:
    """The content. The fields of `LoadState` but what is under way; rates as rows of their own length.

    `asked_rps` are the state's `unheld_rps`.
    """

    workloads: tuple[FollowedWorkload, ...]
    seconds: _Rates
    minutes: _Rates
    minute: tuple[_Numbers, ...]
    asked_rps: tuple[float, ...]
    peaks_rps: tuple[_Numbers, ...]
    part_s: float
    changed_s: float
    tried_s: float
    now_s: float
    number: int
    limits: LoadLimits
    days: _Days
    reviewed_s: float
    plan_hash: str


def write_load(path: Path, state: LoadState) -> None:
    """Replace the file. What is under way is not kept. Raises EngineError where the disk refuses."""
    content = _File(
        workloads=state.workloads,
        seconds=_rates(state.seconds),
        minutes=_rates(state.minutes),
        minute=tuple(map(_row, state.minute)),
        days=_days(state.days),
        reviewed_s=state.reviewed_s,
        plan_hash=state.plan_hash,
        asked_rps=state.unheld_rps,
        peaks_rps=tuple(map(_row, state.peaks_rps)),
        part_s=state.part_s,
        changed_s=state.changed_s,
        tried_s=state.tried_s,
        now_s=state.now_s,
        number=state.number,
        limits=state.limits,
    )
    write_derived(path, to_compact_json({"schema_version": _VERSION, **fields_of(content)}))


def read_load(path: Path) -> LoadState | None:
    """Read the file; None where there is none. Raises InputError if it is broken or of another version."""
    if not path.exists():
        return None
    parsed = read(path).parse(_File, newer=True)
    return LoadState(
        workloads=parsed.workloads,
        seconds=_from(parsed.seconds, 1.0),
        minutes=_from(parsed.minutes, 60.0),
        minute=tuple(_from_row(second, math.nan) for second in parsed.minute),
        days=_from_days(parsed.days, parsed.limits.day_s),
        unheld_rps=parsed.asked_rps,
        peaks_rps=tuple(_from_row(part, math.inf) for part in parsed.peaks_rps),
        part_s=parsed.part_s,
        changed_s=parsed.changed_s,
        tried_s=parsed.tried_s,
        reviewed_s=parsed.reviewed_s,
        now_s=parsed.now_s,
        number=parsed.number,
        limits=parsed.limits,
        plan_hash=parsed.plan_hash,
    )


def _rates(rates: Rates) -> _Rates:
    rows = zip(rates.counts, rates.stretch.tolist(), strict=True)
    return _Rates(
        counts=[_row(counts[KEPT - stretch :].tolist()) for counts, stretch in rows],
        dispersion=rates.dispersion.tolist(),
    )


def _from(parsed: _Rates, step_s: float) -> Rates:
    empty = Rates.unknown(len(parsed.counts), step_s)
    counts, stretch = empty.counts.copy(), empty.stretch.copy()
    for i, row in enumerate(parsed.counts):
        kept = row[-KEPT:]
        if kept:
            counts[i, KEPT - len(kept) :] = _from_row(kept, math.nan)
        stretch[i] = len(kept)
    return Rates(step_s, counts, stretch, np.array(parsed.dispersion, dtype=np.float64))


def _days(days: Days) -> _Days:
    rates = [[_row(parts) for parts in day] for day in days.rates.tolist()]
    return _Days(rates, days.part, days.requests.tolist(), days.seconds.tolist())


def _from_days(kept: _Days, length_s: float) -> Days:
    rates = [[_from_row(parts, math.nan) for parts in day] for day in kept.rates]
    counts = np.array(kept.requests, dtype=np.float64), np.array(kept.seconds, dtype=np.float64)
    shaped = np.array(rates, dtype=np.float64).reshape(DAYS, len(kept.requests), PARTS)
    return Days(length_s, shaped, kept.part, *counts)


def _row(values: Sequence[float]) -> _Numbers:
    return [value if math.isfinite(value) else None for value in values]


def _from_row(values: _Numbers, unknown: float) -> tuple[float, ...]:
    return tuple(unknown if value is None else value for value in values)
