"""Profiles from measurements of other tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from controlplane.domain.device import Device
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.files.measurements.elsewhere import Run
from controlplane.files.measurements.profiles import profile_path, read_profile


def merged_profile(
    runs: Sequence[Run], *, model: str, device: Device, percent: float, tool: str, profiles: Path
) -> Profile:
    """Return a profile of these runs at a share, beside those of the model's that came from elsewhere before.

    Raises InputError for a share that is not the device's, and where `ctl profile` measured the model itself:
    its points know a share curve, and the two are not to be mixed.
    """
    if percent not in device.grid.percents():
        grid = device.grid
        raise InputError(
            f"{percent:g} is not on this device's grid: {grid.minimum_percent:g} to 100 in steps of "
            f"{grid.step_percent:g}",
            field="--at",
        )
    path = profile_path(profiles, device.name, model)
    known = read_profile(path) if path.exists() else None
    if known is not None and known.environment.tool is None:
        raise InputError(
            "`ctl profile` measured this model itself: name another directory with --profiles, or remove the "
            "file",
            file=str(path),
        )
    fresh = from_runs(runs, model=model, device=device, percent=percent, tool=tool)
    return fresh if known is None else merged(known, fresh)


def from_runs(runs: Sequence[Run], *, model: str, device: Device, percent: float, tool: str) -> Profile:
    """Return a profile of runs at one share, without fits. Of a batch that stands twice the slower counts."""
    slowest: dict[int, Run] = {}
    for run in sorted(runs, key=lambda r: (r.batch, r.execution_ms)):
        slowest[run.batch] = run
    counted = tuple(slowest.values())
    jitters = [r.spread_ms / r.execution_ms for r in counted if r.spread_ms is not None]
    outside = [r.frontend_ms for r in counted if r.frontend_ms is not None]
    limits = [r.max_batch for r in counted if r.max_batch is not None]
    return Profile(
        model=model,
        device=device.name,
        share_kind=device.share_kind,
        environment=Environment(tool=tool),
        points=tuple(Measurement(percent, r.batch, r.execution_ms, std_ms=r.spread_ms) for r in counted),
        jitter=median(jitters) if jitters else None,
        frontend_ms=median(outside) if outside else None,
        max_batch=max(limits) if limits else None,
    )


def merged(known: Profile, fresh: Profile) -> Profile:
    """Return the known profile with the fresh points in place of those at the same share and batch.

    What holds for the model as a whole is the more cautious of both.
    """
    replaced = {(p.percent, p.batch) for p in fresh.points}
    points = [p for p in known.points if (p.percent, p.batch) not in replaced]
    return replace(
        fresh,
        points=tuple(sorted((*points, *fresh.points), key=lambda p: (p.percent, p.batch))),
        colocation=known.colocation,
        jitter=_larger(known.jitter, fresh.jitter),
        frontend_ms=_larger(known.frontend_ms, fresh.frontend_ms),
        memory_mb=_larger(known.memory_mb, fresh.memory_mb),
        max_batch=fresh.max_batch if fresh.max_batch is not None else known.max_batch,
    )


def _larger(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return max(known) if known else None
