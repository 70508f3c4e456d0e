"""Shapes of models' inputs of variable shape, kept between commands below the state directory."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from controlplane.domain.tensors import Shapes
from controlplane.files.documents import SCHEMA_VERSION, State
from controlplane.files.fleets import model_state_path
from controlplane.files.writing import write_json


class _Shapes(State):
    schema_version: int
    model: str
    shapes: dict[str, list[int]]


def read_sample_shapes(model: Path) -> Shapes:
    """Return the kept shapes of a model's folder by input; empty without any."""
    try:
        kept = _Shapes.model_validate_json(_path(model).read_bytes())
    except (OSError, ValidationError):
        return {}
    return {name: tuple(dims) for name, dims in kept.shapes.items()}


def write_sample_shapes(model: Path, shapes: Shapes) -> None:
    """Keep the shapes of a model's folder. Raises EngineError where the disk refuses."""
    path = _path(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {name: list(dims) for name, dims in shapes.items()}
    write_json(path, {"schema_version": SCHEMA_VERSION, "model": str(model.resolve()), "shapes": kept})


def _path(model: Path) -> Path:
    return model_state_path(".shapes", model)
