"""Model configurations that Triton completed, kept between commands below the state directory.

A kept one holds while the model's configuration and files are those that Triton saw.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pydantic import ValidationError

from controlplane.files.documents import SCHEMA_VERSION, State
from controlplane.files.fleets import model_state_path
from controlplane.files.writing import write_json

_CONFIG = "config.pbtxt"


class _Completed(State):
    schema_version: int
    model: str
    stamp: str
    config: str


def read_completed(model: Path) -> str | None:
    """Return the completed config.pbtxt of a model's folder; None without one for its present files."""
    try:
        kept = _Completed.model_validate_json(_path(model).read_bytes())
    except (OSError, ValidationError):
        return None
    return kept.config if kept.stamp == _stamp(model) else None


def write_completed(model: Path, config: str) -> None:
    """Keep the completed config.pbtxt of a model's folder. Raises EngineError where the disk refuses."""
    path = _path(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        path,
        {
            "schema_version": SCHEMA_VERSION,
            "model": str(model.resolve()),
            "stamp": _stamp(model),
            "config": config,
        },
    )


def _path(model: Path) -> Path:
    return model_state_path(".completed", model)


def _stamp(model: Path) -> str:
    """Return a hash of the configuration and, by size and time, of the files of the versions."""
    config = model / _CONFIG
    seen: list[object] = [hashlib.sha256(config.read_bytes()).hexdigest() if config.is_file() else None]
    # Running the model writes a __pycache__ there.
    files = (p for p in model.glob("[0-9]*/**/*") if p.is_file() and p.suffix != ".pyc")
    for file in sorted(files):
        found = file.stat()
        seen.append((str(file.relative_to(model)), found.st_size, found.st_mtime_ns))
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()
