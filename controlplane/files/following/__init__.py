"""Files of a fleet that follows its load: how it follows, the profiles to plan with, the rates it sees.

The spec is in the plan. The profiles are copies: those that a plan was made from may be gone when the load
changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.observation import RateSeen
from controlplane.files.documents import read_state, versioned
from controlplane.files.measurements.profiles import NAME as CALIBRATION
from controlplane.files.reading import exists
from controlplane.files.writing import to_compact_json, write_derived, write_json

_RECEIVED = ".received"
"""The hash of the profiles that came as texts."""


@dataclass(frozen=True, slots=True)
class Following:
    """How a fleet follows its load.

    Without `follow` nothing changes by itself. A cheaper plan must have been enough for `dwell_s`.
    `all_cores`: plans may use every core of this host.
    """

    follow: bool = False
    dwell_s: float = 300.0
    all_cores: bool = False


class FollowingFiles:
    """The files below one fleet's state directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._settings = directory / "following.json"
        self.profiles = directory / "profiles"
        self.proposal = directory / "proposal.json"
        self.without_more = directory / "proposal-without-more.json"
        """In a cluster: the plan for the devices that there are, where the proposal needs more."""

    def settings(self) -> Following:
        """Return how the fleet follows. Raises InputError for a broken file."""
        return read_state(self._settings, Following) or Following()

    def changed_s(self) -> float | None:
        """Return the time of the last change of the settings; None where there are none."""
        return self._settings.stat().st_mtime if exists(self._settings) else None

    def keep_profiles(self, profiles: Path) -> None:
        """Keep profiles, devices and the calibration. Raises EngineError where the disk refuses.

        Where none is newer than its copy they stay: a controller may be reading them, and has learned.
        """
        given, kept = _files(profiles), _files(self.profiles)
        if kept.keys() - {Path(CALIBRATION)} <= given.keys() <= kept.keys() and all(
            file.stat().st_mtime <= kept[name].stat().st_mtime for name, file in given.items()
        ):
            return
        self._replace_profiles(profile_texts(profiles))

    def receive(self, profiles: Mapping[str, str]) -> None:
        """Keep profiles that come as texts by their places, unless they are those that came before.

        What was learned since stays with them. Raises EngineError where the disk refuses, InputError for a
        place elsewhere.
        """
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in profiles):
            raise InputError("a profile's place is not within the folder of profiles", field="profiles")
        code = hashlib.sha256(to_compact_json(dict(profiles)).encode()).hexdigest()
        with contextlib.suppress(OSError):
            if (self.profiles / _RECEIVED).read_text() == code:
                return
        self._replace_profiles({**profiles, _RECEIVED: code})  # last: the others are there then

    def _replace_profiles(self, texts: Mapping[str, str]) -> None:
        try:
            shutil.rmtree(self.profiles, ignore_errors=True)
            self.profiles.mkdir(parents=True)
            for name, text in texts.items():
                (self.profiles / name).parent.mkdir(exist_ok=True)
                (self.profiles / name).write_text(text)
        except OSError as error:
            raise EngineError(f"{self._directory}: cannot be written: {error.strerror}") from error

    def write(self, following: Following) -> None:
        """Replace the settings. Raises EngineError where the disk refuses."""
        write_json(self._settings, versioned(following))


def profile_texts(profiles: Path) -> dict[str, str]:
    """Return a folder of profiles as texts by their places in it."""
    return {str(name): file.read_text() for name, file in sorted(_files(profiles).items())}


def _files(profiles: Path) -> dict[Path, Path]:
    """Return the files of a folder of profiles by their places in it."""
    return {
        file.relative_to(profiles): file for file in (*profiles.glob("*.json"), *profiles.glob("*/*.json"))
    }


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
