"""Where a figure goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controlplane.domain.errors import EngineError


def save(figure: Any, path: Path) -> None:
    """Write a matplotlib figure; the path's suffix names the format. Raises EngineError: the disk refuses."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise EngineError(f"{path}: cannot be written: {error.strerror}") from error
