"""The content of a directory as a value, and a fleet's rendered model repositories on disk.

Each is at OUTPUT/<fleet>/<partition>/<hash of the content>, with links to the pinned models in
OUTPUT/<fleet>/.pinned. Equal content has the same path in every plan, so a server's repository stays in place
while the server runs. A write of a tree happens completely or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.errors import EngineError
from controlplane.files.writing import sync_directory, write_synced


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link to an absolute path."""

    target: str


@dataclass(frozen=True, slots=True)
class Tree:
    """Relative path, parts joined by '/' -> the text of a file, or a link."""

    entries: Mapping[str, str | Link]

    @property
    def content_hash(self) -> str:
        """SHA-256 of every path with its text or target: equal trees, equal hashes."""
        listed = [
            [path, "link", entry.target] if isinstance(entry, Link) else [path, "text", entry]
            for path, entry in sorted(self.entries.items())
        ]
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


_HASH_DIGITS = 16


def write_rendered(output: Path, fleet: str, partition: str, tree: Tree) -> Path:
    """Write a partition's repository and return its path. Raises EngineError where the disk refuses.

    The fleet's folder is closed to other users: parameters in a configuration may hold secrets.
    """
    path = rendered_path(output, fleet, partition, tree)
    folder = path.parents[1]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise EngineError(f"{folder}: cannot be made for this user only: {error.strerror}") from error
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
    Also removes the unfinished folders of interrupted commands. The next call tries again what cannot be
    removed now.
    """
    root = output.resolve() / fleet
    rendered = filter(None, (read_tree(Path(path)) for path in needed))
    links = (one for tree in rendered for one in tree.entries.values() if isinstance(one, Link))
    # They link to REPOSITORY/MODEL/NAME.
    needed = {*needed, *(str(Path(link.target).parents[1]) for link in links)}
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


def write_tree(root: Path, tree: Tree) -> bool:
    """Make `root` hold exactly `tree`; return False if it did already. A container's user may read it.

    The new tree is on disk under another name before `root` changes, so a full disk leaves the old tree
    intact. Raises EngineError where the disk refuses.
    """
    temporary: Path | None = None
    try:
        if read_tree(root) == tree:
            return False
        root.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=root.parent, prefix=f".{root.name}."))
        fresh, old = temporary / "new", temporary / "old"
        fresh.mkdir()
        for path, entry in tree.entries.items():
            _write(fresh / path, entry)
        for directory, _, _ in os.walk(fresh):
            os.chmod(directory, 0o755)
            sync_directory(Path(directory))
        # No portable call swaps two directories. After a crash between the renames `root` is missing until
        # the next call.
        with contextlib.suppress(FileNotFoundError):
            root.rename(old)
        fresh.rename(root)
        sync_directory(root.parent)
    except OSError as error:
        raise EngineError(
            f"{root}: cannot be written: {error.strerror}; the old content is intact"
        ) from error
    finally:
        if temporary is not None:
            old = temporary / "old"
            if old.exists() and not root.exists():  # the second rename failed
                with contextlib.suppress(OSError):
                    old.rename(root)
            shutil.rmtree(temporary, ignore_errors=True)
    return True


def read_tree(root: Path) -> Tree | None:
    """Read `root` without following links; None if it is not a directory or not fully readable."""
    if root.is_symlink() or not root.is_dir():
        return None
    entries: dict[str, str | Link] = {}
    try:
        for path in _leaves(root):
            name = path.relative_to(root).as_posix()
            entries[name] = Link(os.readlink(path)) if path.is_symlink() else path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None
    return Tree(entries)


def _leaves(root: Path) -> Iterator[Path]:
    for directory, directories, files in os.walk(root):
        for name in files:
            yield Path(directory, name)
        for name in directories:
            path = Path(directory, name)
            if path.is_symlink():
                yield path


def _write(path: Path, entry: str | Link) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(entry, Link):
        path.symlink_to(entry.target)
    else:
        write_synced(path, entry.encode())
