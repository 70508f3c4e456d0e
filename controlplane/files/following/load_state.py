"""What a controller knows about the load of its fleet: a file that the next controller goes on from.

Only the steps of a stretch are kept: older ones count no more. `null` is what was not seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from controlplane.control.autoscaler.rates import DAYS, KEPT, PARTS, Days, Rates
from controlplane.control.autoscaler.state import FollowedWorkload, LoadLimits, LoadState
from controlplane.files.documents import read
from controlplane.files.reading import exists
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
    """The content: the fields of `LoadState` but what is under way; rates as rows of their own length.

    `asked_rps` are the state's `unheld_rps`.
    """

    workloads: tuple[FollowedWorkload, ...]
    seconds: _Rates
    minutes: _Rates
    minute: tuple[_Numbers, ...]
    days: _Days
    asked_rps: tuple[float, ...]
    peaks_rps: tuple[_Numbers, ...]
    part_s: float
    changed_s: float
    tried_s: float
    reviewed_s: float
    now_s: float
    number: int
    limits: LoadLimits
    plan_hash: str


def write_load(path: Path, state: LoadState) -> None:
    """Replace the file. What is under way is not kept. Raises EngineError where the disk refuses."""
    content = {name: value for name, value in fields_of(state).items() if name in _File.__slots__}
    content |= {
        "schema_version": _VERSION,
        "asked_rps": state.unheld_rps,
        "seconds": _rates(state.seconds),
        "minutes": _rates(state.minutes),
        "minute": [_row(second) for second in state.minute],
        "days": _Days(
            [[_row(parts) for parts in day] for day in state.days.rates.tolist()],
            state.days.part,
            state.days.requests.tolist(),
            state.days.seconds.tolist(),
        ),
        "peaks_rps": [_row(part) for part in state.peaks_rps],
    }
    write_derived(path, to_compact_json(content))


def read_load(path: Path) -> LoadState | None:
    """Read the file; None where there is none. Raises InputError if it is broken or of another version."""
    if not exists(path):
        return None
    parsed = read(path).parse(_File, newer=True)
    known = fields_of(parsed)
    known |= {
        "unheld_rps": known.pop("asked_rps"),
        "seconds": _from_rates(parsed.seconds, 1.0),
        "minutes": _from_rates(parsed.minutes, 60.0),
        "minute": tuple(_from_row(second, math.nan) for second in parsed.minute),
        "days": _from_days(parsed.days, parsed.limits.day_s),
        "peaks_rps": tuple(_from_row(part, math.inf) for part in parsed.peaks_rps),
    }
    return LoadState(**known)


def _rates(rates: Rates) -> _Rates:
    rows = zip(rates.counts, rates.stretch.tolist(), strict=True)
    return _Rates(
        [_row(counts[KEPT - stretch :].tolist()) for counts, stretch in rows], rates.dispersion.tolist()
    )


def _from_rates(parsed: _Rates, step_s: float) -> Rates:
    empty = Rates.unknown(len(parsed.counts), step_s)
    counts, stretch = empty.counts.copy(), empty.stretch.copy()
    for i, row in enumerate(parsed.counts):
        kept = row[-KEPT:]
        counts[i, KEPT - len(kept) :] = _from_row(kept, math.nan)
        stretch[i] = len(kept)
    return Rates(step_s, counts, stretch, np.array(parsed.dispersion, dtype=np.float64))


def _from_days(parsed: _Days, length_s: float) -> Days:
    rates = [[_from_row(parts, math.nan) for parts in day] for day in parsed.rates]
    shaped = np.array(rates, dtype=np.float64).reshape(DAYS, len(parsed.requests), PARTS)
    requests, seconds = (np.array(one, dtype=np.float64) for one in (parsed.requests, parsed.seconds))
    return Days(length_s, shaped, parsed.part, requests, seconds)


def _row(values: Iterable[float]) -> _Numbers:
    return [value if math.isfinite(value) else None for value in values]


def _from_row(values: Sequence[float | None], unknown: float) -> tuple[float, ...]:
    return tuple(unknown if value is None else value for value in values)
