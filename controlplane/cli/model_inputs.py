"""The options `--shape` and `--input-data`: inputs of the models to measure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.profiler.requests import Inputs


def model_inputs(shapes: Sequence[str], files: Sequence[str], models: Sequence[str]) -> dict[str, Inputs]:
    """Return the given inputs by model.

    A shape without a model's name is for all `models`. Raises InputError naming the option.
    """
    shape_of: dict[str, dict[str, tuple[int, ...]]] = {}
    for text in shapes:
        name, colon, dims = text.rpartition(":")
        if not colon or not all(d.isdigit() and int(d) > 0 for d in dims.split(",")):
            raise InputError(f"{text!r} is not MODEL:INPUT:DIM,DIM with dimensions above 0", field="--shape")
        # An input's name may contain a colon, a model's name cannot.
        model, colon, tensor = name.partition(":")
        of_one = bool(colon) and model in models
        for each in (model,) if of_one else models:
            shape_of.setdefault(each, {})[tensor if of_one else name] = tuple(int(d) for d in dims.split(","))
    file_of: dict[str, Path] = {}
    for text in files:
        model, colon, file = text.partition(":")
        if not colon or not model or not file:
            raise InputError(f"{text!r} is not MODEL:FILE", field="--input-data")
        if model in file_of:
            raise InputError(f"{model!r} has two files; a model is measured with one", field="--input-data")
        file_of[model] = Path(file)
    return {model: Inputs(shape_of.get(model, {}), file_of.get(model)) for model in shape_of | file_of}
