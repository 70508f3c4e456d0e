"""What is known of a model's folder, kept between commands below the state directory.

The configuration that Triton completed holds while the model's configuration and files are those that Triton
saw. The shapes are those of its inputs of variable shape.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.domain.tensors import Shapes
from controlplane.files.documents import Value, read_state, versioned
from controlplane.files.fleets import state_root
from controlplane.files.pinned.content import by_time, survey
from controlplane.files.writing import write_json

_CONFIG = "config.pbtxt"


@dataclass(frozen=True, slots=True)
class _Completed:
    model: str
    stamp: str
    config: str


@dataclass(frozen=True, slots=True)
class _Shapes:
    model: str
    shapes: Mapping[str, tuple[int, ...]]


def read_completed(model: Path) -> str | None:
    """Return the completed config.pbtxt of a model's folder; None without one for its present files."""
    kept = _read(_path(".completed", model), _Completed)
    with contextlib.suppress(InputError):
        return kept.config if kept is not None and kept.stamp == _stamp(model) else None
    return None


def write_completed(model: Path, config: str) -> None:
    """Keep the completed config.pbtxt of a model's folder. Raises EngineError where the disk refuses.

    Raises InputError for a folder that cannot be applied.
    """
    kept = _Completed(str(model.resolve()), _stamp(model), config)
    write_json(_path(".completed", model), versioned(kept))


def read_sample_shapes(model: Path) -> Shapes:
    """Return the kept shapes of a model's folder by input; empty without any."""
    kept = _read(_path(".shapes", model), _Shapes)
    return {} if kept is None else kept.shapes


def write_sample_shapes(model: Path, shapes: Shapes) -> None:
    """Keep the shapes of a model's folder. Raises EngineError where the disk refuses."""
    write_json(_path(".shapes", model), versioned(_Shapes(str(model.resolve()), shapes)))


def _read(path: Path, kind: type[Value]) -> Value | None:
    """Return what is kept; None also where it is damaged: it can be had again."""
    try:
        return read_state(path, kind)
    except InputError:
        return None


def _path(folder: str, model: Path) -> Path:
    """Return the file of what is kept of a model; `folder` begins with a dot, as no fleet's does."""
    digest = hashlib.sha256(str(model.resolve()).encode()).hexdigest()[:16]
    return state_root() / folder / f"{model.name}-{digest}.json"


def _stamp(model: Path) -> str:
    """Return a hash of the configuration and, by size and time, of the model's files.

    Raises InputError for a folder that cannot be applied.
    """
    config, text = model / _CONFIG, b""
    with contextlib.suppress(OSError):
        text = config.read_bytes() if config.is_file() else b""
    files = {path: by_time(model, stamp) for path, stamp in survey(model).items() if stamp is not None}
    files[_CONFIG] = hashlib.sha256(text).hexdigest()
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
