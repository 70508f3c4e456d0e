"""A fleet's rendered model repositories on disk: OUTPUT/<fleet>/<partition>/<hash of the content>.

They link to the pinned models in OUTPUT/<fleet>/.pinned.

Equal content has the same path in every plan, so a server's repository stays in place while the server runs.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection
from pathlib import Path

from controlplane.domain.tree import Link, Tree
from controlplane.files.tree import read_tree, write_tree

_HASH_DIGITS = 16


def write_rendered(output: Path, fleet: str, partition: str, tree: Tree) -> Path:
    """Write a partition's repository and return its path. Raises EngineError where the disk refuses."""
    path = rendered_path(output, fleet, partition, tree)
    write_tree(path, tree)
    return path


def rendered_path(output: Path, fleet: str, partition: str, tree: Tree) -> Path:
    """Return the path of a partition's repository."""
    return output.resolve() / fleet / partition / tree.content_hash[:_HASH_DIGITS]


def pinned_root(output: Path, fleet: str) -> Path:
    """Return the folder of a fleet's pinned models, which no partition has: a name has no dot first."""
    return output.resolve() / fleet / ".pinned"


def forget_rendered(output: Path, fleet: str, needed: Collection[str]) -> bool:
    """Remove a fleet's repositories except the `needed` paths; return whether any folder is left.

    Pinned models stay where they are needed, or where a needed repository links to them.
    Also removes the folders of older versions, OUTPUT/<fleet>/<plan hash>/<partition>, and the unfinished
    folders of interrupted commands. The next call tries again what cannot be removed now.
    """
    root = output.resolve() / fleet
    needed = {*needed, *(pinned for path in needed for pinned in _linked(Path(path)))}
    for group in _folders(root):
        for path in _folders(group):
            if str(path) not in needed:
                shutil.rmtree(path, ignore_errors=True)
        _remove_empty(group)
    _remove_empty(root)
    return root.is_dir()


def _linked(rendered: Path) -> set[str]:
    """Return the pinned repositories to whose REPOSITORY/MODEL/NAME a rendered one links."""
    tree = read_tree(rendered)
    entries = () if tree is None else tree.entries.values()
    return {str(Path(entry.target).parents[1]) for entry in entries if isinstance(entry, Link)}


def _folders(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not empty, or not there
        folder.rmdir()
