"""The sources of an earlier version of this repository, as installed before an upgrade."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMIT = "d436825ee5bb677195e5555ef8c9070481486c3b"
NOT_RUN = "UPGRADE NOT RUN: this copy has no history of the repository, from which the version before comes"
_PACKAGES = ("controlplane", "launchers")


class Installed:
    """A folder for PYTHONPATH: first the earlier version, then, in the same place, this one."""

    def __init__(self, directory: Path, former: Path) -> None:
        self.path = directory / "installed"
        self.path.symlink_to(former)

    def upgrade(self) -> None:
        """Put this version in place of the earlier one, as an installer does."""
        newer = self.path.with_suffix(".new")
        newer.symlink_to(ROOT)
        os.replace(newer, self.path)


def install(directory: Path) -> Installed | None:
    """Return the earlier version installed below `directory`; None in a copy without its history."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", COMMIT, *_PACKAGES]
    packed = subprocess.run(command, capture_output=True, check=False)
    if packed.returncode != 0:
        return None
    former = directory / "former"
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(former, filter="data")
    return Installed(directory, former)
