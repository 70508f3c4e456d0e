"""Files of a fleet that follows its load: what its plans are made from, how it follows, the rates it sees.

Spec and profiles are copies: the files that a plan was made from may be gone when the load changes. A fleet
without them cannot follow.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.errors import EngineError
from controlplane.domain.observation import RateSeen
from controlplane.domain.spec import Spec
from controlplane.files.documents import Document, read_state, versioned
from controlplane.files.measurements.profiles import NAME as CALIBRATION
from controlplane.files.specs import read_spec
from controlplane.files.writing import to_compact_json, write_derived, write_json, write_text


@dataclass(frozen=True, slots=True)
class Following:
    """How a fleet follows its load.

    `spec_sha256` is the hash of the kept spec. Without `follow` nothing changes by itself. A cheaper plan
    must have been enough for `dwell_s`. `all_cores`: plans may use every core of this host.
    """

    spec_sha256: str
    follow: bool = False
    dwell_s: float = 300.0
    all_cores: bool = False


class FollowingFiles:
    """The files below one fleet's state directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._settings = directory / "following.json"
        self._spec = directory / "spec.yaml"
        self.profiles = directory / "profiles"
        self.proposal = directory / "proposal.json"

    def settings(self) -> Following | None:
        """Return how the fleet follows; None where it keeps no spec. Raises InputError for a broken file."""
        return read_state(self._settings, Following)

    def changed_s(self) -> float | None:
        """Return the time of the last change of the settings; None where there are none."""
        return self._settings.stat().st_mtime if self._settings.exists() else None

    def spec(self) -> tuple[Spec, Document]:
        """Return the kept spec. Raises InputError."""
        return read_spec(self._spec)

    def keep(self, following: Following, document: Document, spec: Spec, profiles: Path) -> None:
        """Keep a spec and the profiles of its GPU types. Raises EngineError where the disk refuses."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self.profiles, ignore_errors=True)
            self.profiles.mkdir()
            for gpu in spec.gpus:
                if (profiles / gpu.type).is_dir():
                    shutil.copytree(profiles / gpu.type, self.profiles / gpu.type)
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(profiles / CALIBRATION, self.profiles / CALIBRATION)
        except OSError as error:
            raise EngineError(f"{self._directory}: cannot be written: {error.strerror}") from error
        write_text(self._spec, document.text)
        self.write(following)

    def write(self, following: Following) -> None:
        """Replace the settings. Raises EngineError where the disk refuses."""
        write_json(self._settings, versioned(following))


@dataclass(frozen=True, slots=True)
class RatesSeen:
    """The rates at one time (seconds since the epoch).

    `following` says whether the plan follows them, and otherwise why not.
    """

    at_s: float
    following: str
    rates: tuple[RateSeen, ...]


def write_rates(path: Path, seen: RatesSeen) -> None:
    """Replace the file. Raises EngineError where the disk refuses."""
    write_derived(path, to_compact_json(versioned(seen)))


def read_rates(path: Path) -> RatesSeen | None:
    """Read the file; None where there is none. Raises InputError if it is broken."""
    return read_state(path, RatesSeen)
