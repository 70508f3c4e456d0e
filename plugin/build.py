"""Build the batch library: for this host by its own compiler, for a wheel by zig for both architectures.

Without a compiler nothing is built, and models are served with a fixed batch. Equal sources and compilers
give equal files: no path, time or build id is in them.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent / "batch_limit.c"
FOLDER = Path(__file__).parent.parent / "launchers" / "triton" / "plugin"
ARCHITECTURES = ("x86_64", "aarch64")
RELEASE = "TRISECT_RELEASE"
"""Where it is set, what cannot be built without a warning fails the build."""
_LINKED = ["-Wl,--build-id=none", "-Wl,-z,nodelete"]
_OPTIONS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-s", *_LINKED]
_GLIBC = "2.28"
"""Of the oldest system on which NVIDIA's images and their users' Tritons run."""


def compilers() -> dict[str, list[str]]:
    """Return the compiler of each architecture that can be built here."""
    if importlib.util.find_spec("ziglang") is not None:
        zig = [sys.executable, "-m", "ziglang", "cc", "-target"]
        return {one: [*zig, f"{one}-linux-gnu.{_GLIBC}"] for one in ARCHITECTURES}
    own = shutil.which("cc") or shutil.which("gcc")
    return {platform.machine(): [own]} if own else {}


def build(folder: Path = FOLDER) -> list[Path]:
    """Build what can be built, into `folder`; return the files. Print what could not be built.

    Raises CalledProcessError, OSError instead for a release.
    """
    release = bool(os.environ.get(RELEASE))
    options = [*_OPTIONS, "-Werror"] if release else _OPTIONS
    folder.mkdir(parents=True, exist_ok=True)
    built = []
    for architecture, compiler in compilers().items():
        library = folder / f"batch_limit.{architecture}.so"
        # By its bare name, so that no path of this host gets into the file.
        line = [*compiler, *options, "-o", str(library.resolve()), SOURCE.name]
        try:
            subprocess.run(line, cwd=SOURCE.parent, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            if release:
                raise
            print(f"plugin: {library.name} is not built, so batches are fixed: {error}", file=sys.stderr)
            library.unlink(missing_ok=True)
        else:
            built.append(library)
    return built


if __name__ == "__main__":
    for file in build():
        print(f"plugin: {file.name}")
