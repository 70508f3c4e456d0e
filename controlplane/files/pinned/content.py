"""The content of models' folders: which files it is, their digests, and how it differs from what was applied.

What a server writes itself beside a model's code is no content.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from controlplane.domain.errors import InputError
from controlplane.files.reading import GRAIN_NS

LINK_ROOTS = "TRISECT_LINK_ROOTS"
CACHE = "__pycache__"
"""What running a model writes beside its code."""

Roots = tuple[Path, ...] | None
"""The folders to which links may lead; None: anywhere."""


class Stamp(NamedTuple):
    """What tells two states of a file apart without reading it."""

    inode: int
    size: int
    changed_ns: int
    written_ns: int


@dataclass(frozen=True, slots=True)
class Seen:
    """A file with its digest; `stamp` is None where the file was too young to rely on its times."""

    stamp: Stamp | None
    digest: str


Digest = Callable[[Path, Stamp], str]


def by_bytes(path: Path, _: Stamp) -> str:
    """Return the SHA-256 of a file. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def by_time(_: Path, stamp: Stamp) -> str:
    """Return a file's size and time, for files that are not copied."""
    return f"{stamp.size}:{stamp.written_ns}"


def survey(folder: Path, roots: Roots = None) -> dict[str, Stamp | None]:
    """Return the files of a model's folder by their paths in it, and its folders (None), which end in '/'.

    Links are followed, and left out where they lead to nothing. Raises InputError for a file that is no
    regular one, a link that leads back, or out of `roots`; OSError.
    """
    found: dict[str, Stamp | None] = {}
    for path, status in _walk(folder, "", (), roots):
        is_folder = stat.S_ISDIR(status.st_mode)
        stamp = Stamp(status.st_ino, status.st_size, status.st_ctime_ns, status.st_mtime_ns)
        found[f"{path}/" if is_folder else path] = None if is_folder else stamp
    return found


def _walk(
    folder: Path, inside: str, above: tuple[Path, ...], roots: Roots
) -> Iterator[tuple[str, os.stat_result]]:
    real = folder.resolve()
    if real in above:
        raise InputError("leads back to a folder that it is in", file=str(folder))
    # Without a Path for each file, which takes most of the time of a large folder.
    for name in sorted(os.listdir(folder)):
        if name == CACHE or (not inside and name.startswith(".")):
            continue
        path = os.path.join(folder, name)
        if roots is not None and os.path.islink(path):
            _check_link(Path(path), roots)
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue  # a link to nothing, as editors leave them
        if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
            raise InputError("is neither a file nor a folder, and cannot be applied", file=path)
        yield f"{inside}{name}", status
        if stat.S_ISDIR(status.st_mode):
            with contextlib.suppress(FileNotFoundError):  # it was there a moment ago
                yield from _walk(Path(path), f"{inside}{name}/", (*above, real), roots)


def _check_link(path: Path, roots: tuple[Path, ...]) -> None:
    real = path.resolve()
    if not any(real.is_relative_to(root) for root in roots):
        raise InputError(
            f"leads to {real}, outside its model repository, and would be readable in a container: copy it "
            f"there, or name a folder above it in ${LINK_ROOTS}",
            file=str(path),
        )


def seen(path: Path, stamp: Stamp, known: Mapping[str, Seen], digest: Digest) -> Seen:
    """Return a file with its digest, which is made only where the file is not as `known`. Raises OSError."""
    before = known.get(str(path))
    if before is not None and before.stamp == stamp:
        return before
    return Seen(settled(stamp), digest(path, stamp))


def settled(stamp: Stamp) -> Stamp | None:
    """Return a stamp, or None for one so young that a later write could look the same."""
    return stamp if time.time_ns() - stamp.changed_ns > GRAIN_NS else None


class Drift(NamedTuple):
    """The files of a repository that are not as they were applied; each sorted."""

    changed: tuple[str, ...]
    added: tuple[str, ...]
    missing: tuple[str, ...]


def drift(
    folders: tuple[str, ...], applied: Mapping[str, Seen], known: dict[str, Seen], digest: Digest
) -> Drift:
    """Return how the present files of models' folders differ from those that were `applied`.

    Reads only files that changed and kept their size; `known` keeps what was read. Raises OSError and
    InputError.
    """
    changed, present = [], set()
    for path, stamp in _present(folders):
        present.add(path)
        before = applied.get(path)
        if before is None or before.stamp == stamp:
            continue
        if before.stamp is not None and before.stamp.size != stamp.size:
            changed.append(path)
            continue
        known[path] = seen(Path(path), stamp, known, digest)
        if known[path].digest != before.digest:
            changed.append(path)
    added, missing = sorted(present - applied.keys()), sorted(applied.keys() - present)
    return Drift(tuple(sorted(changed)), tuple(added), tuple(missing))


def _present(folders: tuple[str, ...]) -> Iterator[tuple[str, Stamp]]:
    for folder in map(Path, folders):
        for inside, stamp in survey(folder).items() if folder.is_dir() else ():
            if stamp is not None:
                yield str(folder / inside), stamp
