"""Virtual environments that have what a wheel declares, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PathDistribution, distribution
from pathlib import Path
from zipfile import Path as ArchivePath
from zipfile import ZipFile

from gpu_kit.build import packages


def make(folder: Path, wheel: Path) -> dict[str, str]:
    """Make an environment for a wheel, whose dependencies are linked from this one; return its variables.

    pip takes packages from no index: an undeclared one is absent.
    """
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # Several packages may share a folder, as namespace packages do.
    entries = {
        str(distribution(name).locate_file(file.parts[0])): file.parts[0]
        for name in packages(_requires(wheel))
        for file in distribution(name).files or ()
    }
    for path, entry in entries.items():
        if entry not in ("..", "__pycache__"):
            (site / entry).symlink_to(path)
    return {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "PIP_NO_INDEX": "1"}


def _requires(wheel: Path) -> list[str]:
    with ZipFile(wheel) as archive:
        (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return PathDistribution(ArchivePath(archive, metadata.removesuffix("METADATA"))).requires or []
