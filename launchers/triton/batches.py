"""Batches that change while a server serves: the library in it, and the files by which they are set.

Each model of a server has two files of a page, each with one word that is written and read in one step:
`limits` holds a generation and the batch, and `seen` the generation that the library has read last, with the
largest batch since. `plugin/batch_limit.c` is the other side. A server without the files, for which a full
disk has no room, keeps the batches of its start, which are in its environment.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import stat
import struct
import time
from collections.abc import Set
from pathlib import Path

from controlplane.domain.errors import EngineError, LibraryIgnored
from controlplane.domain.fleet import LIVE_BATCHES, Batches
from controlplane.ports import Capability

_PAGE = 4096
_WORD = struct.Struct("=Q")
_LIBRARIES = Path(__file__).parent / "plugin"
_START_S = 60.0
"""Far above the time between the files and the process that reads them."""
_LIMITS, _SEEN = "limits", "seen"


def library() -> str | None:
    """Return the library for this host; None where it is not built or switched off."""
    path = _LIBRARIES / f"batch_limit.{platform.machine()}.so"
    return str(path) if path.is_file() and os.environ.get(LIVE_BATCHES) != "off" else None


def capability() -> Capability:
    """Return whether servers of this host can change their batches, for `ctl doctor`."""
    if (found := library()) is not None:
        return Capability("live batches", True, found)
    why = (
        f"${LIVE_BATCHES} is off"
        if os.environ.get(LIVE_BATCHES) == "off"
        else f"no library for {platform.machine()}"
    )
    return Capability("live batches", False, f"{why}: a plan with other batches starts other servers")


def without_library(problem: str) -> LibraryIgnored:
    """Return the error of a server that has not the library, with the way out."""
    return LibraryIgnored(f"{problem}: set ${LIVE_BATCHES}=off and apply again, and batches are fixed")


def sweep(root: Path, alive: Set[str]) -> None:
    """Remove the folders below `root` whose server is not among `alive`; not those of starts under way."""
    for folder in root.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            if folder.name not in alive and time.time() - folder.stat().st_mtime > _START_S:
                BatchFiles(folder).remove()


class BatchFiles:
    """The files of one server in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.limits, self.seen = folder / _LIMITS, folder / _SEEN

    def make(self, batches: Batches, *, shared: bool) -> None:
        """Make the files before a start. Raises OSError.

        `shared`: the server is a container that runs as another user. It has only `folder`, and the folder
        above keeps out all others.
        """
        self.remove()
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.folder.parent.chmod(0o700)
        for folder in (self.folder, self.limits, self.seen):
            folder.mkdir()
            folder.chmod(0o711 if shared else 0o700)
        for model, batch in batches:
            _write_page(self.limits / model, _word(1, batch), 0o644 if shared else 0o600)
            _write_page(self.seen / model, 0, 0o666 if shared else 0o600)

    def read(self) -> Batches:
        """Return the present batches, of the models whose batch can be changed."""
        try:
            words = [(path.name, _read(path)) for path in sorted(self.limits.iterdir())]
        except OSError:  # no such server, it ended meanwhile, or its files are lost
            return ()
        return tuple((model, word & 0xFFFFFFFF) for model, word in words if word is not None)

    def set(self, batches: Batches) -> None:
        """Change batches; a file that was lost is made anew. Raises EngineError where that cannot be."""
        for model, batch in batches:
            path, before = self.limits / model, _read(self.limits / model)
            try:
                if before is None:
                    self._make_again(path, batch)
                    continue
                with path.open("r+b", buffering=0) as file:
                    file.write(_WORD.pack(_word((before >> 32) + 1, batch)))
            except OSError as error:
                raise EngineError(
                    f"the batch of {model} cannot be changed to {batch} while its server runs: {error}"
                ) from error

    def _make_again(self, path: Path, batch: int) -> None:
        """Make a lost file again, which the library of a server that runs finds. Raises OSError."""
        answered = _read(self.seen / path.name)
        if answered is None:
            raise FileNotFoundError("its server takes no other batch")
        access = stat.S_IMODE(self.seen.stat().st_mode)  # the same as that of `limits`
        self.limits.mkdir(exist_ok=True)
        self.limits.chmod(access)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        _write_page(path, _word((answered >> 32) + 1, batch), 0o644 if access & stat.S_IXOTH else 0o600)

    def unanswered(self) -> tuple[str, ...]:
        """Return the models whose library has not written to its file since the server's start."""
        return tuple(model for model, _ in self.read() if not (_read(self.seen / model) or 0) >> 32)

    def remove(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.folder, ignore_errors=True)


def environment(planned: Batches, files: BatchFiles | None) -> dict[str, str]:
    """Return what the library reads of the environment of a server that starts with the `planned` batches."""
    if not planned:
        return {}
    found = {"TRISECT_BATCHES": "".join(f"{batch}:{model}/" for model, batch in planned)}
    if files is not None:
        found |= {"TRISECT_BATCH_LIMITS": str(files.limits), "TRISECT_BATCH_SEEN": str(files.seen)}
    return found


def _word(generation: int, batch: int) -> int:
    # Never 0, which says that no library has answered.
    return (generation % 2**32 or 1) << 32 | batch


def _read(path: Path) -> int | None:
    """Return a file's word; None where it is no page. A server may have put anything in place of `seen`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != _PAGE:
            return None
        content = os.pread(descriptor, _WORD.size, 0)
        return int(_WORD.unpack(content)[0]) if len(content) == _WORD.size else None
    finally:
        os.close(descriptor)


def _write_page(path: Path, word: int, access: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, access)
        file.write(_WORD.pack(word).ljust(_PAGE, b"\0"))
