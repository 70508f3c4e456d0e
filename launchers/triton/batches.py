"""Batches that change while a server serves: the library in it, and the files by which they are set.

Each model of a server has two files of a page, each with one word that is written and read in one step:
`limits` holds a generation and the batch, and `seen` the generation that the library obeys, with the largest
batch under it. `plugin/batch_limit.c` is the other side.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import shutil
import struct
import time
from collections.abc import Set
from pathlib import Path

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Batches
from controlplane.ports import Capability

SWITCH = "TRISECT_LIVE_BATCHES"
"""Set to `off`, batches are fixed in the configurations, and a plan with others starts other servers."""
_PAGE = 4096
_WORD = struct.Struct("=Q")
_LIBRARIES = Path(__file__).parent / "plugin"
_START_S = 60.0
"""Far above the time between the files and the process that reads them."""
_LIMITS, _SEEN = "limits", "seen"


def library() -> str | None:
    """Return the library for this host; None where it is not built or switched off."""
    path = _LIBRARIES / f"batch_limit.{platform.machine()}.so"
    return str(path) if path.is_file() and os.environ.get(SWITCH) != "off" else None


def capability() -> Capability:
    """Return whether servers of this host can change their batches, for `ctl doctor`."""
    if (found := library()) is not None:
        return Capability("live batches", True, found)
    why = f"${SWITCH} is off" if os.environ.get(SWITCH) == "off" else f"no library for {platform.machine()}"
    return Capability("live batches", False, f"{why}: a plan with other batches starts other servers")


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

    @property
    def environment(self) -> dict[str, str]:
        """What the library reads of the server's environment."""
        return {"TRISECT_BATCH_LIMITS": str(self.limits), "TRISECT_BATCH_SEEN": str(self.seen)}

    def make(self, batches: Batches, owner: tuple[int, int] | None) -> None:
        """Make the files before a start. `owner`: the user and group of the server, where it is another."""
        self.remove()
        for folder in (self.folder, self.limits, self.seen):
            folder.mkdir(parents=True, mode=0o700)
        for model, batch in batches:
            _write_page(self.limits / model, _word(1, batch))
            _write_page(self.seen / model, 0)
        if owner is not None:
            for path in (self.limits, self.seen, *self.limits.iterdir(), *self.seen.iterdir()):
                os.chown(path, *owner)

    def read(self) -> Batches:
        """Return the present batches, of the models that have any."""
        found = []
        with contextlib.suppress(FileNotFoundError):  # no such server, or it ended meanwhile
            for path in sorted(self.limits.iterdir()):
                found.append((path.name, _read(path) & 0xFFFFFFFF))
        return tuple(found)

    def set(self, batches: Batches) -> None:
        """Change batches. Raises EngineError for a model that has none."""
        for model, batch in batches:
            try:
                with (self.limits / model).open("r+b") as file, mmap.mmap(file.fileno(), _PAGE) as page:
                    word = ctypes.c_uint64.from_buffer(page)
                    word.value = _word((word.value >> 32) + 1, batch)
                    del word  # which keeps the page
            except (OSError, ValueError) as error:
                raise EngineError(f"the batch of {model} cannot be changed: {error}") from error

    def unanswered(self) -> tuple[str, ...]:
        """Return the models whose library has not taken over the present generation since its start."""
        models = [model for model, _ in self.read()]
        return tuple(model for model in models if _read(self.seen / model) >> 32 == 0)

    def remove(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _word(generation: int, batch: int) -> int:
    # Never 0, which says that no library has answered.
    return (generation % 2**32 or 1) << 32 | batch


def _read(path: Path) -> int:
    with path.open("rb") as file:
        return int(_WORD.unpack(file.read(_WORD.size))[0])


def _write_page(path: Path, word: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(_WORD.pack(word).ljust(_PAGE, b"\0"))
