"""Options of `ctl profile` about the inputs of models: `--shape`, `--range`, `--input-data`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from controlplane.domain.errors import InputError
from controlplane.domain.tensors import parsed_dims
from controlplane.profiler.requests import Inputs

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
