"""A fleet's rendered model repositories on disk: OUTPUT/<fleet>/<partition>/<hash of the content>.

Equal content has the same path in every plan, so a server's repository stays in place while the server runs.
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
    """Write a partition's repository and return its path. Raises EngineError where the disk refuses."""
    path = rendered_path(output, fleet, partition, tree)
    write_tree(path, tree)
    return path


def rendered_path(output: Path, fleet: str, partition: str, tree: Tree) -> Path:
    """Return the path of a partition's repository."""
    return output.resolve() / fleet / partition / tree.content_hash[:_HASH_DIGITS]


def forget_rendered(output: Path, fleet: str, needed: Collection[str]) -> bool:
    """Remove a fleet's repositories except the `needed` paths; return whether any folder is left.

    Also removes the folders of older versions, OUTPUT/<fleet>/<plan hash>/<partition>, and the unfinished
    folders of interrupted commands. The next call tries again what cannot be removed now.
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
