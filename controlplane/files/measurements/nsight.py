"""Exports of NVIDIA's profilers: SQLite of Nsight Systems, CSV of Nsight Compute.

    nsys export --type sqlite report.nsys-rep
    ncu --csv --page raw --metrics lts__t_sectors.avg.pct_of_peak_sustained_elapsed,gpu__time_duration.sum ...

Tables, columns and metric names are those NVIDIA documents for both tools.
"""

from __future__ import annotations

import contextlib
import csv
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from controlplane.domain.errors import InputError
from controlplane.domain.profile import KernelTrace
from controlplane.files.reading import read_bytes

_TO_DEVICE, _TO_HOST = 1, 2
"""copyKind of CUPTI_ACTIVITY_KIND_MEMCPY."""
_CACHE = (
    "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "L2 Cache Throughput",
)
"""Use of the L2 cache: the counter, the section's figure, and that one's name on the details page."""
_TIME = ("gpu__time_duration.sum", "Duration")
_NS = {"us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9}
"""What is in no `ns`."""


def read_trace(path: Path, *, executions: int, batch: int) -> KernelTrace:
    """Read a SQLite export of Nsight Systems of `executions` executions of one batch, one after another.

    Raises InputError for any other file, and for fewer kernels than executions.
    """
    if not path.is_file():
        raise InputError("there is no such file", file=str(path), field="FILE")
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as opened:
            context = opened.execute(
                "SELECT deviceId, contextId FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY deviceId, contextId "
                "ORDER BY COUNT(*) DESC LIMIT 1"
            ).fetchone() or (0, 0)
            kernels = opened.execute(
                "SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE deviceId = ? AND contextId = ? "
                "ORDER BY start",
                context,
            ).fetchall()
            copied = _copied(opened, context)
    except sqlite3.DatabaseError as error:
        problem = (
            f"is not a SQLite export of Nsight Systems with kernels ({error}): nsys export --type sqlite"
        )
        raise InputError(problem, file=str(path), field="FILE") from error
    if len(kernels) < executions:
        problem = f"holds {len(kernels)} kernels, which cannot be {executions} executions"
        raise InputError(problem, file=str(path), field="FILE")
    starts, ends = np.array(kernels, dtype=np.int64).T
    # Streams overlap: the GPU is idle only after the last of all that began before.
    gaps_ns = np.maximum(0, starts[1:] - np.maximum.accumulate(ends)[:-1])
    # The longest ones lie between executions.
    within = np.sort(gaps_ns)[: gaps_ns.size - (executions - 1)]
    items = executions * batch
    return KernelTrace(
        kernels=len(kernels) / executions,
        gap_ms=float(within.sum()) / len(kernels) / 1e6,
        loaded_bytes=copied.get(_TO_DEVICE, 0) / items,
        fed_back_bytes=copied.get(_TO_HOST, 0) / items,
    )


def _copied(opened: sqlite3.Connection, context: tuple[int, int]) -> dict[int, int]:
    """Return copied bytes by copyKind. Without copies the export has no such table."""
    name = "CUPTI_ACTIVITY_KIND_MEMCPY"
    if not opened.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone():
        return {}
    query = f"SELECT copyKind, SUM(bytes) FROM {name} WHERE deviceId = ? AND contextId = ? GROUP BY copyKind"
    return dict(opened.execute(query, context).fetchall())


def read_cache_percent(path: Path) -> float:
    """Return the use of the L2 cache in percent of its peak, averaged over kernel time.

    `path` is a CSV of Nsight Compute in one of both formats: a row for each metric (the default), or a column
    for each (`--page raw`).
    Raises InputError for a file without such a figure.
    """
    lines = read_bytes(path).decode(errors="replace").splitlines()
    # The output of the program and of the tool precedes the table.
    begin = next((i for i, line in enumerate(lines) if "Kernel Name" in line and "," in line), len(lines))
    rows = list(csv.DictReader(lines[begin:]))
    kernels: defaultdict[str, dict[str, float]] = defaultdict(dict)
    if rows and "Metric Name" in rows[0]:
        for row in rows:
            _take(kernels[row["ID"]], row["Metric Name"], row["Metric Value"], row.get("Metric Unit"))
    else:
        units = rows[0] if rows else {}
        for number, row in enumerate(rows[1:]):
            for name in {*_CACHE, *_TIME} & row.keys():
                _take(kernels[str(number)], name, row[name], units[name])
    both = ((_first(figures, _CACHE), _first(figures, _TIME)) for figures in kernels.values())
    known = [(cache, time_ns or 0.0) for cache, time_ns in both if cache is not None]
    if not known:
        problem = f"has no kernel with {_CACHE[0]}: ncu --csv --page raw --metrics {_CACHE[0]},{_TIME[0]}"
        raise InputError(problem, file=str(path), field="FILE")
    cache, time_ns = np.array(known).T
    return float(np.average(cache, weights=time_ns if time_ns.sum() > 0 else None))


def _take(into: dict[str, float], name: str, value: str, unit: str | None) -> None:
    """Add a figure, times in ns, unless the tool could not measure it (`n/a`)."""
    with contextlib.suppress(ValueError):
        into[name] = float(value.replace(",", "")) * _NS.get(unit or "", 1.0)


def _first(figures: Mapping[str, float], names: Iterable[str]) -> float | None:
    return next((figures[name] for name in names if name in figures), None)
