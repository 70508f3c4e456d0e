"""A fleet's rendered model repositories on disk: OUTPUT/<fleet>/<partition>/<hash of the content>.

Equal content has one path, whatever else two plans differ in, so a server's repository stays where it is for
as long as the server runs.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection
from pathlib import Path

from controlplane.domain.tree import Tree
from controlplane.files.tree import write_tree

_HASH_DIGITS = 16


def write_rendered(output: Path, fleet: str, partition: str, tree: Tree) -> Path:
    """Have a partition's repository on disk; where it lies. Raises EngineError where the disk refuses."""
    path = rendered_path(output, fleet, partition, tree)
    write_tree(path, tree)
    return path


def rendered_path(output: Path, fleet: str, partition: str, tree: Tree) -> Path:
    """Where a partition's repository lies once it is written."""
    return output.resolve() / fleet / partition / tree.content_hash[:_HASH_DIGITS]


def forget_rendered(output: Path, fleet: str, needed: Collection[str]) -> bool:
    """Remove a fleet's repositories but for the `needed` paths; returns whether any folder is left.

    Those that an older version called OUTPUT/<fleet>/<plan hash>/<partition>, and what an interrupted command
    left half written, go too. What cannot be removed now is found again by the next call.
    """
    root = output.resolve() / fleet
    for group in _folders(root):
        for path in _folders(group):
            if str(path) not in needed:
                shutil.rmtree(path, ignore_errors=True)
        _remove_empty(group)
    _remove_empty(root)
    return root.is_dir()


def _folders(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not empty, or not there
        folder.rmdir()
