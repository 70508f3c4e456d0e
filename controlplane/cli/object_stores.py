"""Model repositories in object stores: `ctl init` copies them, other verbs take the copy."""

from __future__ import annotations

from pathlib import Path

from controlplane.cli.stderr import say
from controlplane.domain.errors import InputError
from controlplane.stores import url


def local_repository(path: Path) -> Path:
    """Return a local path. Raises InputError for an object store."""
    if not url.is_store(str(path)):
        return path
    place = url.parse(str(path))
    raise InputError(
        f"{place} is not read: plans and servers need the models' files in a local folder. Mount it, or "
        f"`ctl init {place}` copies it to {place.name}; then name that folder",
        field="repository",
    )


def copied_repository(path: Path) -> Path:
    """Return a local path, for an object store the path of a copy in the current directory.

    Raises InputError, EngineError.
    """
    if not url.is_store(str(path)):
        return path
    # The client of the stores belongs to an extra, and a local repository needs none.
    from controlplane.stores import copying

    place = url.parse(str(path))
    folder = Path(place.name)
    copied = copying.copy(place, folder)
    say(f"{place}: copied {copied.files} files, {copied.size_bytes / 1e6:.1f} MB, to {folder}")
    return folder
