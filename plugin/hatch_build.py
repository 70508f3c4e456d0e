"""The wheel's build hook: the batch library is compiled into the package `launchers`.

With TRISECT_RELEASE set the wheel carries it for both architectures, by a compiler that is a package.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
from build import RELEASE, build


class BatchLibrary(BuildHookInterface[Any]):
    """Builds the library before the wheel's files are collected."""

    def dependencies(self) -> list[str]:
        """Return the compiler, of 100 MB: only a release needs it."""
        return ["ziglang==0.17.1"] if os.environ.get(RELEASE) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and have the wheel take the files, which git ignores."""
        root = Path(self.root)
        for library in build():
            build_data["force_include"][str(library)] = str(library.relative_to(root))
