"""Profiles from measurements of other tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from controlplane.domain.device import Device
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Counters, Environment, Measurement, Profile, Tool
from controlplane.files.measurements import nsight
from controlplane.files.measurements.elsewhere import (
    Run,
    read_aiperf,
    read_model_analyzer,
    read_perf_analyzer,
)
from controlplane.files.measurements.profiles import profile_path, read_profile
from controlplane.runtime.devices import known_device
from controlplane.runtime.jobs.profile import with_fits

_TIMES: Mapping[Tool, tuple[str, Callable[[str, str], tuple[Run, ...]]]] = {
    Tool.PERF_ANALYZER: ("perf_analyzer", lambda text, _: (read_perf_analyzer(*_of_batch(text)),)),
    Tool.MODEL_ANALYZER: ("Model Analyzer", lambda text, model: read_model_analyzer(Path(text), model)),
    Tool.AIPERF: ("AIPerf", lambda text, _: (read_aiperf(*_of_batch(text)),)),
}
"""Tools that measured batches: the name in a profile, and how an argument is read for a model."""


def imported(
    tool: Tool, files: Sequence[str], *, model: str, device: str, percent: float, profiles: Path
) -> tuple[Profile, list[str]]:
    """Return the profile with what a tool measured, and what its files cannot say. Raises InputError."""
    if tool not in _TIMES:
        return _with_counters(model, tool, files, device, profiles), []
    name, read = _TIMES[tool]
    runs = [run for text in files for run in read(text, model)]
    found = merged_profile(
        runs, model=model, device=known_device(device), percent=percent, tool=name, profiles=profiles
    )
    one = with_fits(found)
    return one, _unknown(one, runs)


def merged_profile(
    runs: Sequence[Run], *, model: str, device: Device, percent: float, tool: str, profiles: Path
) -> Profile:
    """Return a profile of these runs at a share, beside those of the model's that came from elsewhere before.

    Raises InputError for a share that is not the device's, and where `ctl profile` measured the model itself:
    its points know a share curve, and the two are not to be mixed.
    """
    device.grid.check(percent, "--at")
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


def _with_counters(model: str, tool: Tool, files: Sequence[str], device: str, profiles: Path) -> Profile:
    """Return a profile with the counters of NVIDIA's profilers. Raises InputError without one."""
    path = profile_path(profiles, device, model)
    if not path.exists():
        raise InputError(f"has no profile on {device} in {profiles}: measure it first", field=model)
    if tool is Tool.NSYS:
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*):(.+)", files[0])
        if match is None or len(files) > 1:
            problem = f"{' '.join(files)!r} must be one BATCHxEXECUTIONS:FILE, like 8x200:FILE"
            raise InputError(problem, field="FILE")
        trace = nsight.read_trace(Path(match[3]), executions=int(match[2]), batch=int(match[1]))
        counters = Counters(trace, {})
    else:
        by_batch = {batch: nsight.read_cache_percent(path) for path, batch in map(_of_batch, files)}
        counters = Counters(None, by_batch)
    return with_fits(read_profile(path), counters, known_device(device, profiles))


def _of_batch(text: str) -> tuple[Path, int]:
    match = re.fullmatch(r"([1-9]\d*):(.+)", text)
    if match is None:
        raise InputError(f"{text!r} must be BATCH:FILE; 8:FILE was measured with batch 8", field="FILE")
    return Path(match[2]), int(match[1])


def _unknown(profile: Profile, runs: Sequence[Run]) -> list[str]:
    """Return what these measurements cannot tell, each with the way out."""
    model, device = profile.model, profile.device
    lines = []
    if profile.only_percent is not None:
        lines.append(
            f"{model}: known at {profile.only_percent:g} % of {device} only, so plans give it no smaller "
            f"share; for a share curve run `ctl profile {model} --device {device}` on one, or measure it at "
            "other shares (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50) and import them with --at 50"
        )
    if not all(run.split for run in runs):
        lines.append(
            f"{model}: without the times in the server a request's whole latency counts as its execution, so "
            "plans are too cautious"
        )
    if profile.memory_mb is None:
        lines.append(f"{model}: its memory is unknown: write memory_mb in the spec, or plans do not judge it")
    return lines
