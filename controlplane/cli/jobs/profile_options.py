"""Options of `ctl profile`: measurements of other tools (`--from-*`), inputs of models (`--shape`, ...)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from controlplane.domain.errors import InputError
from controlplane.domain.profile import Profile
from controlplane.domain.tensors import parsed_dims
from controlplane.files.measurements.elsewhere import (
    Run,
    read_aiperf,
    read_model_analyzer,
    read_perf_analyzer,
)
from controlplane.files.measurements.profiles import write_profile
from controlplane.profiler.requests import Inputs
from controlplane.runtime.devices import known_device
from controlplane.runtime.jobs.elsewhere import merged_profile
from controlplane.runtime.jobs.profile import Written, with_fits

Value = TypeVar("Value")


def model_inputs(
    shapes: Sequence[str], files: Sequence[str], models: Sequence[str], ranges: Sequence[str] = ()
) -> dict[str, Inputs]:
    """Return the given inputs by model.

    A shape or a range without a model's name is for all `models`. Raises InputError naming the option.
    """
    shape_of = _by_input(shapes, models, _dims)
    range_of = _by_input(ranges, models, _between)
    file_of = _files(files)
    return {
        model: Inputs(shape_of.get(model, {}), file_of.get(model), range_of.get(model, {}))
        for model in shape_of | file_of | range_of
    }


def _by_input(
    given: Sequence[str], models: Sequence[str], parse: Callable[[str, str], Value]
) -> dict[str, dict[str, Value]]:
    """Return MODEL:INPUT:VALUES by model and input."""
    found: dict[str, dict[str, Value]] = {}
    for text in given:
        name, _, values = text.rpartition(":")
        # An input's name may contain a colon, a model's name cannot.
        model, colon, tensor = name.partition(":")
        of_one = bool(colon) and model in models
        for each in (model,) if of_one else models:
            found.setdefault(each, {})[tensor if of_one else name] = parse(text, values if name else "")
    return found


def _dims(text: str, values: str) -> tuple[int, ...]:
    dims = parsed_dims(values)
    if dims is None:
        raise InputError(f"{text!r} is not MODEL:INPUT:DIM,DIM with dimensions above 0", field="--shape")
    return dims


def _between(text: str, values: str) -> tuple[float, float]:
    try:
        low, high = (float(value) for value in values.split(","))
    except ValueError:
        low, high = 1.0, 0.0
    if not -float("inf") < low <= high < float("inf"):
        problem = f"{text!r} is not MODEL:INPUT:LOW,HIGH with two numbers, the smaller one first"
        raise InputError(problem, field="--range")
    return low, high


def _files(given: Sequence[str]) -> dict[str, Path]:
    file_of: dict[str, Path] = {}
    for text in given:
        model, colon, file = text.partition(":")
        if not colon or not model or not file:
            raise InputError(f"{text!r} is not MODEL:FILE", field="--input-data")
        if model in file_of:
            raise InputError(f"{model!r} has two files; a model is measured with one", field="--input-data")
        file_of[model] = Path(file)
    return file_of


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
