"""Virtual environments that have what a wheel declares, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from zipfile import Path as ArchivePath
from zipfile import ZipFile

from packaging.requirements import Requirement


def make(folder: Path, wheel: Path) -> dict[str, str]:
    """Make an environment for a wheel, whose dependencies are linked from this one; return its variables.

    pip takes packages from no index: an undeclared one is absent.
    """
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # Several packages may share a folder, as namespace packages do.
    entries = {
        str(found.locate_file(file.parts[0])): file.parts[0]
        for found in _needed(wheel)
        for file in found.files or ()
    }
    for path, entry in entries.items():
        if entry not in ("..", "__pycache__"):
            (site / entry).symlink_to(path)
    return {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "PIP_NO_INDEX": "1"}


def _needed(wheel: Path) -> list[Distribution]:
    """Return what a wheel requires without an extra, and what that requires in turn."""
    with ZipFile(wheel) as archive:
        (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = PathDistribution(ArchivePath(archive, metadata.removesuffix("METADATA"))).requires
    found: dict[str, Distribution] = {}
    left = [(line, frozenset[str]()) for line in lines or ()]
    while left:
        line, extras = left.pop()
        wanted = Requirement(line)
        marker = wanted.marker
        applies = marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""})
        if applies and wanted.name not in found:
            found[wanted.name] = distribution(wanted.name)
            left += [(line, frozenset(wanted.extras)) for line in found[wanted.name].requires or ()]
    return list(found.values())
