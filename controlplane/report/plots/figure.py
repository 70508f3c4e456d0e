"""Writing of figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controlplane.domain.errors import EngineError


def save(figure: Any, path: Path) -> None:
    """Write a matplotlib figure in the format of the path's suffix. Raises EngineError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise EngineError(f"{path}: cannot be written: {error.strerror}") from error
