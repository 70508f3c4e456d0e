"""Shared memory that Triton's Python backend leaves behind when it is killed."""

from __future__ import annotations

from pathlib import Path

from launchers.labels import memory_owner

_FOLDER = Path("/dev/shm")


def remove(prefix: str) -> list[str]:
    """Remove every region whose name starts with `prefix`; return a line for each."""
    found = [p for p in _FOLDER.iterdir() if p.name.startswith(prefix)]
    for region in found:
        region.unlink(missing_ok=True)
    return [str(p) for p in found]


def sweep(fleet: str, alive: set[str]) -> list[str]:
    """Remove the fleet's regions whose server is not among the digests in `alive`."""
    removed: list[str] = []
    for region in _FOLDER.iterdir():
        owner = memory_owner(region.name, fleet)
        if owner is not None and owner not in alive:
            region.unlink(missing_ok=True)
            removed.append(str(region))
    return removed
