"""`ctl import`: profiles from files of other tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import options
from controlplane.cli.jobs.profile import written_document
from controlplane.cli.output import print_json, say
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Counters, Profile
from controlplane.files.measurements import nsight
from controlplane.files.measurements.elsewhere import (
    Run,
    read_aiperf,
    read_model_analyzer,
    read_perf_analyzer,
)
from controlplane.files.measurements.profiles import profile_path, read_profile, write_profile
from controlplane.report.words import counted
from controlplane.runtime.devices import known_device
from controlplane.runtime.jobs.elsewhere import merged_profile
from controlplane.runtime.jobs.profile import Written, with_fits


class Tool(StrEnum):
    """What wrote the files."""

    PERF_ANALYZER = "perf-analyzer"
    MODEL_ANALYZER = "model-analyzer"
    AIPERF = "aiperf"
    NSYS = "nsys"
    NCU = "ncu"


@dataclass(frozen=True, slots=True)
class _Times:
    """A tool that measured batches: its name in a profile, and how one of its files is read."""

    name: str
    read: Callable[[str, str], tuple[Run, ...]]
    """From the argument and the model."""


_TIMES: Mapping[Tool, _Times] = {
    Tool.PERF_ANALYZER: _Times("perf_analyzer", lambda text, _: (read_perf_analyzer(*_of_batch(text)),)),
    Tool.MODEL_ANALYZER: _Times("Model Analyzer", lambda text, model: read_model_analyzer(Path(text), model)),
    Tool.AIPERF: _Times("AIPerf", lambda text, _: (read_aiperf(*_of_batch(text)),)),
}


def import_(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model that was measured.")],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="What the tool wrote, after the batch: 8:FILE for perf_analyzer -f (run with -b 8), for "
            "AIPerf's profile_export_aiperf.json and for Nsight Compute's CSV; 8x200:FILE for Nsight "
            "Systems' SQLite export of 200 executions of batch 8; FILE alone for Model Analyzer's "
            "metrics-model-inference.csv.",
        ),
    ],
    tool: Annotated[Tool, typer.Option("--from", help="The tool.")],
    device: Annotated[str, typer.Option(help="The GPU type, like v100, or cpu.")],
    at: Annotated[
        float,
        typer.Option(help="The share of the device in percent, for times of batches.", min=1.0, max=100.0),
    ] = 100.0,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    json: options.Json = False,
) -> None:
    """Make or extend the profile of MODEL from files of a tool that measured one request at a time.

    Times of batches (perf-analyzer, model-analyzer, aiperf) join those that came from other tools before.
    Counters of NVIDIA's profilers (nsys, ncu) join a profile that is there.
    """
    if tool in _TIMES:
        read = _TIMES[tool]
        runs = [run for text in files for run in read.read(text, model)]
        on = known_device(device)
        found = merged_profile(
            runs, model=model, device=on, percent=at, tool=read.name, profiles=profiles.resolve()
        )
        one = with_fits(found)
        notes = _unknown(one, runs)
    else:
        one, notes = _with_counters(model, tool, files, device, profiles.resolve()), []
    written = Written(one, write_profile(profiles.resolve(), one), 0.0)
    if json:
        print_json({"profiles": [written_document(written, 0)]})
    else:
        print(f"{written.path}: {counted(len(one.points), 'point')} with what {tool} measured")
    for line in notes:
        say(f"warning: {line}")


def _with_counters(model: str, tool: Tool, files: Sequence[str], device: str, profiles: Path) -> Profile:
    """Return a profile with the counters of NVIDIA's profilers. Raises InputError without one."""
    path = profile_path(profiles, device, model)
    if not path.exists():
        raise InputError(f"has no profile on {device} in {profiles}: measure it first", field=model)
    return with_fits(read_profile(path), _trace(files) if tool is Tool.NSYS else _cache(files))


def _trace(files: Sequence[str]) -> Counters:
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*):(.+)", files[0])
    if match is None or len(files) > 1:
        problem = f"{' '.join(files)!r} must be one BATCHxEXECUTIONS:FILE, like 8x200:FILE"
        raise InputError(problem, field="FILE")
    return Counters(nsight.read_trace(Path(match[3]), executions=int(match[2]), batch=int(match[1])), {})


def _cache(files: Sequence[str]) -> Counters:
    by_batch = {batch: nsight.read_cache_percent(path) for path, batch in map(_of_batch, files)}
    return Counters(None, by_batch)


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
