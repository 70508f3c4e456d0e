"""Copies of models as an apply read them, from which a fleet's servers start until another apply.

A hard link would not do: it is the file that its user edits in place.

A record says what was pinned with a fleet's plan, and with the plan before.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.errors import EngineError, InputError
from controlplane.files.documents import SCHEMA_VERSION, read_state
from controlplane.files.pinned.content import (
    Digest,
    Roots,
    Seen,
    Stamp,
    by_bytes,
    by_time,
    seen,
    settled,
    survey,
)
from controlplane.files.writing import sync_directory, to_compact_json, write_synced, write_text

CONFIG_NAME = "config.pbtxt"
LIMIT = "TRISECT_PINNED_GB"
_DIGEST_DIGITS = 32
_FICLONE = 0x40049409
"""The request of ioctl_ficlone(2): share the blocks of another file until one of the two changes."""


@dataclass(frozen=True, slots=True)
class PinRules:
    """How a fleet's models are pinned.

    `copies`: the files themselves; else links to them, for servers that read a volume of their own.
    `link_roots` are folders outside the repository to which links in it may lead; None: anywhere.
    """

    copies: bool = True
    link_roots: Roots = None
    limit_gb: float = 200.0

    @property
    def digest(self) -> Digest:
        """What tells whether a file is the one that was pinned."""
        return by_bytes if self.copies else by_time


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder of the user's repository, and the configuration that its model is served by."""

    name: str
    directory: Path
    config: str


@dataclass(frozen=True, slots=True)
class Pin:
    """A model and all that it executes, as an apply read it.

    `repository` is a model repository of just these, whose name is a digest of all in it. `folders` were
    read, and in them `files`, by their paths.
    """

    repository: str
    folders: tuple[str, ...]
    files: Mapping[str, Seen]


Survey = Mapping[str, Mapping[str, Stamp | None]]
"""Model -> what is in its folder."""


class PinStore:
    """Pins models below `root`. `known` are the digests of earlier applies, by path."""

    def __init__(self, root: Path, rules: PinRules, known: Mapping[str, Seen]) -> None:
        self._root = root
        self._rules = rules
        self._known = known
        self._digest = rules.digest
        self._new: list[str] = []

    def preview(self, models: Sequence[ModelFolder]) -> Pin:
        """Return what `pin` does, without writing anything."""
        with _readable():
            found = self._survey(models)
            return self._pin(models, found, self._seen(models, found))

    def pin(self, models: Sequence[ModelFolder]) -> Pin:
        """Return a model, the first of `models`, with what it executes, pinned.

        Reads only files that changed since they were pinned last. Raises InputError for files that cannot be
        read or change meanwhile, and beyond the limit; EngineError where the disk refuses.
        """
        with _readable():
            found = self._survey(models)
            paths = {
                str(m.directory / p): stamp for m in models for p, stamp in found[m.name].items() if stamp
            }
            if all(path in self._known and self._known[path].stamp == stamp for path, stamp in paths.items()):
                made = self._pin(models, found, self._seen(models, found))
                if Path(made.repository).is_dir():
                    return made
        return self._made(models, found)

    def undo(self) -> None:
        """Remove what this store pinned, where the rest of an apply fails."""
        for path in self._new:
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty, or not there
            self._root.rmdir()
            self._root.parent.rmdir()

    def _survey(self, models: Sequence[ModelFolder]) -> Survey:
        roots = self._rules.link_roots
        found = {}
        for model in models:
            within = None if roots is None else (model.directory.parent.resolve(), *roots)
            found[model.name] = survey(model.directory, within)
        return found

    def _seen(self, models: Sequence[ModelFolder], found: Survey) -> dict[str, Seen]:
        return {
            str(path): seen(path, stamp, self._known, self._digest)
            for model in models
            for path, stamp in ((model.directory / p, s) for p, s in found[model.name].items())
            if stamp is not None
        }

    def _pin(self, models: Sequence[ModelFolder], found: Survey, files: Mapping[str, Seen]) -> Pin:
        content = {}
        for model in models:
            for path, stamp in found[model.name].items():
                digest = "" if stamp is None else files[str(model.directory / path)].digest
                content[f"{model.name}/{path}"] = digest
            content[f"{model.name}/{CONFIG_NAME}"] = hashlib.sha256(model.config.encode()).hexdigest()
        listed = json.dumps(sorted(content.items())).encode()
        name = hashlib.sha256(listed).hexdigest()[:_DIGEST_DIGITS]
        return Pin(str(self._root / name), tuple(str(model.directory) for model in models), files)

    def _made(self, models: Sequence[ModelFolder], found: Survey) -> Pin:
        """Copy the models, and name the copy by what it holds."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            # Models may be confidential, and their copies are readable for the users of containers.
            self._root.chmod(0o700)
            for left in self._root.glob(".*"):  # of an apply that was killed
                shutil.rmtree(left, ignore_errors=True)
            self._check_room(found)
            with tempfile.TemporaryDirectory(
                dir=self._root, prefix=".", ignore_cleanup_errors=True
            ) as temporary:
                fresh = Path(temporary, "new")
                files: dict[str, Seen] = {}
                for model in models:
                    files |= self._fill(fresh / model.name, model, found[model.name])
                if self._survey(models) != found:
                    raise InputError(
                        "changed while it was copied; apply again when nothing writes there",
                        file=str(models[0].directory),
                    )
                for directory, _, _ in os.walk(fresh):
                    os.chmod(directory, 0o755)
                    sync_directory(Path(directory))
                made = self._pin(models, found, files)
                if not Path(made.repository).is_dir():
                    fresh.rename(made.repository)
                    self._new.append(made.repository)
                    sync_directory(self._root)
                return made
        except OSError as error:
            what = error.filename2 or error.filename or self._root
            raise EngineError(
                f"{models[0].directory} cannot be copied to {self._root}: {what}: {error.strerror}; "
                "nothing was changed"
            ) from error

    def _fill(self, target: Path, model: ModelFolder, found: Mapping[str, Stamp | None]) -> dict[str, Seen]:
        """Write one model's folder; return the files that it was made from, with their digests."""
        target.mkdir(parents=True)
        write_synced(target / CONFIG_NAME, model.config.encode())
        if not self._rules.copies:
            for inside in {path.split("/")[0] for path in found} - {CONFIG_NAME}:
                (target / inside).symlink_to(model.directory / inside)
            return self._seen([model], {model.name: found})
        files: dict[str, Seen] = {}
        for inside, stamp in found.items():
            source, copy = model.directory / inside, target / inside
            if stamp is None:
                copy.mkdir()
            elif inside == CONFIG_NAME:
                files[str(source)] = seen(source, stamp, self._known, self._digest)
            else:
                _copy(source, copy)
                files[str(source)] = Seen(settled(stamp), self._digest(copy, stamp))
        return files

    def _check_room(self, found: Survey) -> None:
        if not self._rules.copies:
            return
        held = sum(path.stat().st_size for path in self._root.rglob("*") if path.is_file())
        wanted = sum(stamp.size for files in found.values() for stamp in files.values() if stamp)
        if held + wanted > self._rules.limit_gb * 1e9:
            raise InputError(
                f"{(held + wanted) / 1e9:.1f} GB of models would be pinned in {self._root}, and the limit is "
                f"{self._rules.limit_gb:g} GB: raise it with ${LIMIT}",
                field=f"${LIMIT}",
            )


def _copy(source: Path, target: Path) -> None:
    """Copy a file, with shared blocks where the file system can, and wait until it is on disk."""
    with source.open("rb") as old, target.open("xb") as new:
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError:
            shutil.copyfile(source, target)
        os.fchmod(new.fileno(), 0o444 | os.fstat(old.fileno()).st_mode & 0o111)
        os.fsync(new.fileno())


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=error.filename) from error


@dataclass(frozen=True, slots=True)
class Applied:
    """The pinned models of a plan, which is given by its hash, by name, and the pinned batch library."""

    plan: str
    models: Mapping[str, Pin]
    library: str | None = None

    def same_as(self, other: Applied | None) -> bool:
        """Return whether servers of the two serve the same."""
        return other is not None and self.plan == other.plan and self.repositories == other.repositories

    @property
    def repositories(self) -> dict[str, str]:
        """The pinned copies by model."""
        return {model: pin.repository for model, pin in self.models.items()}

    @property
    def files(self) -> dict[str, Seen]:
        """All files that were read, by path."""
        return {path: seen for pin in self.models.values() for path, seen in pin.files.items()}


@dataclass(frozen=True, slots=True)
class Record:
    """What was pinned with a fleet's present plan and with the previous one."""

    applied: Applied | None = None
    previous: Applied | None = None

    @property
    def known(self) -> dict[str, Seen]:
        """The digests of all files on record: the newest of each."""
        before, now = (one.files if one is not None else {} for one in (self.previous, self.applied))
        return before | now

    def of_plan(self, plan: str) -> Applied | None:
        """Return what was pinned with a plan: an apply that was killed may have left one to be applied."""
        return next((one for one in (self.applied, self.previous) if one and one.plan == plan), None)


def read_record(path: Path) -> Record:
    """Read a record; an empty one where there is no file. Raises InputError for a damaged file."""
    return read_state(path, Record) or Record()


def write_record(path: Path, record: Record) -> None:
    """Replace a record. Raises EngineError where the disk refuses."""
    content = {"schema_version": SCHEMA_VERSION, "applied": record.applied, "previous": record.previous}
    write_text(path, to_compact_json(content))
