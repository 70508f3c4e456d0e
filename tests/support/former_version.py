"""The sources of an earlier version of this repository, as installed before an upgrade."""

import io
import os
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMIT = "d436825ee5bb677195e5555ef8c9070481486c3b"
NOT_RUN = "UPGRADE NOT RUN: this copy has no history of the repository, from which the version before comes"
PACKAGES = ("controlplane", "launchers")


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
    former = unpack(directory / "former", *PACKAGES)
    return None if former is None else Installed(directory, former)


def unpack(folder: Path, *places: str) -> Path | None:
    """Write these folders of the earlier version into `folder`; None in a copy without its history."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", COMMIT, *places]
    packed = subprocess.run(command, capture_output=True, check=False)
    if packed.returncode != 0:
        return None
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder
