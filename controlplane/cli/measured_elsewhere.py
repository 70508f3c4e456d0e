"""The options `--from-perf-analyzer`, `--from-model-analyzer` and `--from-aiperf` of `ctl profile`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.domain.profile import Profile
from controlplane.files.measurements.elsewhere import (
    Run,
    read_aiperf,
    read_model_analyzer,
    read_perf_analyzer,
)
from controlplane.files.measurements.profiles import write_profile
from controlplane.runtime.devices import known_device
from controlplane.runtime.jobs.elsewhere import merged_profile
from controlplane.runtime.jobs.profile import Written, with_fits


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The files that the user names, by tool."""

    perf_analyzer: Sequence[str] = ()
    model_analyzer: Sequence[Path] = ()
    aiperf: Sequence[str] = ()

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools of which there are files."""
        given = {
            "perf_analyzer": self.perf_analyzer,
            "Model Analyzer": self.model_analyzer,
            "AIPerf": self.aiperf,
        }
        return tuple(tool for tool, files in given.items() if files)

    def runs(self, model: str) -> tuple[Run, ...]:
        """Read all files. Raises InputError naming the option, or the file, line and column."""
        return (
            *(read_perf_analyzer(*_of_batch(text, "--from-perf-analyzer")) for text in self.perf_analyzer),
            *(run for path in self.model_analyzer for run in read_model_analyzer(path, model)),
            *(read_aiperf(*_of_batch(text, "--from-aiperf")) for text in self.aiperf),
        )


def write_elsewhere(
    given: Elsewhere, models: Sequence[str], *, device: str, percent: float, profiles: Path
) -> tuple[Written, tuple[Run, ...]]:
    """Write the profile of measurements from elsewhere; return it and them.

    Raises InputError; then nothing is written.
    """
    if len(models) != 1:
        raise InputError("name the one MODEL that was measured", field="MODELS")
    runs = given.runs(models[0])
    found = merged_profile(
        runs,
        model=models[0],
        device=known_device(device),
        percent=percent,
        tool=" and ".join(given.tools),
        profiles=profiles,
    )
    fitted = with_fits(found)
    return Written(fitted, write_profile(profiles, fitted), 0.0), runs


def unknown_lines(profile: Profile, runs: Sequence[Run]) -> list[str]:
    """Return what these measurements cannot tell, each with the way out."""
    model, device = profile.model, profile.device
    lines = []
    if profile.only_percent is not None:
        lines.append(
            f"{model}: known at {profile.only_percent:g} % of {device} only, so plans give it no smaller "
            f"share; for a share curve run `ctl profile {model} --device {device}` on one, or measure it at "
            "other shares (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50) and import them with --measured-at 50"
        )
    if not all(run.split for run in runs):
        lines.append(
            f"{model}: without the times in the server a request's whole latency counts as its execution, so "
            "plans are too cautious"
        )
    if profile.memory_mb is None:
        lines.append(f"{model}: its memory is unknown: write memory_mb in the spec, or plans do not judge it")
    return lines


def _of_batch(text: str, option: str) -> tuple[Path, int]:
    match = re.fullmatch(r"([1-9]\d*):(.+)", text)
    if match is None:
        raise InputError(f"{text!r} must be BATCH:FILE; 8:FILE was measured with -b 8", field=option)
    return Path(match[2]), int(match[1])
