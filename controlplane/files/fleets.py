"""A fleet's files between commands: its settings, its plan and the previous plan.

They serve to find and rebuild things. What runs is read from the engine, never from these files. Modules of
plans, specs and profiles are imported where a file of theirs is read: most commands read the settings only.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.fleet import LOAD_TIMEOUT_S, Cluster, GatewayConfig
from controlplane.domain.observation import Guarding
from controlplane.domain.serving import LauncherName, Serving
from controlplane.domain.units import Positive
from controlplane.files.documents import read, read_listed, read_text, versioned
from controlplane.files.reading import exists
from controlplane.files.writing import append_line, to_json, write_derived, write_json, write_text

if TYPE_CHECKING:
    from controlplane.domain.plan import Plan
    from controlplane.files.following import Following, FollowingFiles
    from controlplane.files.pinned import Record


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """The settings of the last apply. Paths are absolute.

    `devices` maps a plan's GPU id to the launcher's name for it. `former_outputs` are earlier output folders
    from which a server still reads. `load_timeout_s` is how long a start may be without progress.
    `batch_library` is what lets servers change their batches while they serve; None: batches are fixed.
    """

    launcher: str
    repository: str
    output: str
    devices: Mapping[str, str]
    endpoints: GatewayConfig = field(default_factory=GatewayConfig)
    former_outputs: tuple[str, ...] = ()
    cluster: Cluster = field(default_factory=Cluster)
    load_timeout_s: Positive = LOAD_TIMEOUT_S
    batch_library: str | None = None

    def section(self, following: Following) -> Serving:
        """Return these settings, and how the fleet follows its load, as a spec's section says them."""
        dwell_s = following.dwell_s if following.follow else None
        launcher = LauncherName(self.launcher)
        return Serving.of(launcher, self.endpoints, self.cluster, dwell_s, self.load_timeout_s)

    def after(self, before: FleetSettings | None) -> FleetSettings:
        """Return these settings with the earlier devices and output folders.

        A rollback needs the devices of the previous plan, and running servers read from earlier outputs.
        """
        if before is None:
            return self
        outputs = dict.fromkeys((before.output, *before.former_outputs))
        former = tuple(output for output in outputs if output != self.output)
        return replace(self, devices={**before.devices, **self.devices}, former_outputs=former)


@contextlib.contextmanager
def _way_out() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        problem = (
            f"{error.problem}; if it is damaged, remove the file and `ctl apply` the plan with the fleet's "
            "ports: servers and traffic go on meanwhile"
        )
        raise InputError(problem, file=error.file, line=error.line, field=error.field) from error


def state_root() -> Path:
    """Return $XDG_STATE_HOME/trisect, by default ~/.local/state/trisect, closed to other users.

    Configurations of models, which may hold secrets, and logs are below it.
    """
    root = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "trisect"
    with contextlib.suppress(OSError):
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        root.chmod(0o700)
    return root


def this_host(machine_id: Path = Path("/etc/machine-id")) -> str:
    """Return what distinguishes this host from others: its machine id, else its name."""
    try:
        text = machine_id.read_text().strip()
    except (OSError, UnicodeDecodeError):
        text = ""
    return text or platform.node()


class FleetFiles:
    """The files of one fleet below `root`/<fleet>."""

    def __init__(self, root: Path, fleet: str) -> None:
        self.fleet = fleet
        self.directory = root / fleet
        self.lock = self.directory / "lock"
        self.gateway = self.directory / "gateway"
        self.guarding = self.directory / "guard.json"
        self.history = self.directory / "history.sqlite"
        self.load = self.directory / "load.json"
        self.rates = self.directory / "rates.json"
        self.controller_lock = self.directory / "controller.lock"
        self.controller_pid = self.directory / "controller.pid"
        # Present while the gateway's supervisor is to start a controller that was killed.
        self.controller_kept = self.directory / "controller.kept"
        # Cannot be a fleet's directory: a fleet's name cannot begin with a dot.
        self.ended = root / ".ended" / f"{fleet}.sqlite"
        self._host = self.directory / "host"
        self._settings = self.directory / "fleet.json"
        self._plan = self.directory / "plan.json"
        self._previous = self.directory / "plan.previous.json"
        self._pinned = self.directory / "pinned.json"
        self._journal = self.directory / "journal.jsonl"

    @property
    def following(self) -> FollowingFiles:
        """What following the load needs."""
        from controlplane.files.following import FollowingFiles

        return FollowingFiles(self.directory / "following")

    def make(self) -> None:
        """Make the fleet's directory, for this user only. Raises OSError."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.directory.chmod(0o700)

    def check_host(self, host: str) -> None:
        """Raise InputError where another host applied the fleet: its servers cannot be seen from here."""
        if exists(self._host) and (owner := read_text(self._host).strip()) not in ("", host):
            raise InputError(
                f"fleet {self.fleet!r} runs on another host ({owner}; this one is {host}): a state directory "
                "serves one host; set XDG_STATE_HOME to a folder of this host, or remove the file if it is "
                "the same host with a new identity",
                file=str(self._host),
            )

    def exists(self) -> bool:
        """Return whether the fleet was applied and not destroyed."""
        return exists(self._settings)

    def settings(self) -> FleetSettings | None:
        """Return the settings of the last apply; None if there was none."""
        if not self.exists():
            return None
        with _way_out():
            return read(self._settings).parse(FleetSettings, newer=True)

    def section(self) -> Serving | None:
        """Return how the fleet is served, as a spec's section says it; None where it was not applied."""
        settings = self.settings()
        return None if settings is None else settings.section(self.following.settings())

    def unknown_keys(self) -> tuple[str, ...]:
        """Return the keys of the settings that this version leaves out: a newer one wrote them."""
        content = read(self._settings).content
        endpoints = content.get("endpoints", {})
        known = ("schema_version", *(one.name for one in fields(FleetSettings)))
        inner = endpoints.keys() - {one.name for one in fields(GatewayConfig)}
        return (*(key for key in content if key not in known), *(f"endpoints.{key}" for key in sorted(inner)))

    def write_settings(self, settings: FleetSettings) -> None:
        """Replace the settings; the fleet is this host's from now on."""
        write_text(self._host, f"{this_host()}\n")
        write_json(self._settings, versioned(settings))

    def plan(self) -> Plan | None:
        """Return the plan that was applied last; None if there was none."""
        return self._applied(self._plan)

    def planned_s(self) -> float | None:
        """Return the time of the last apply in seconds since the epoch; None if there was none."""
        return self._plan.stat().st_mtime if exists(self._plan) else None

    def changed_s(self) -> float | None:
        """Return when a command last wrote the settings or the plan; None if there is neither.

        A command writes the settings before it starts a server and the plan after, so one that was killed in
        between counts too.
        """
        times = [path.stat().st_mtime for path in (self._settings, self._plan) if exists(path)]
        return max(times, default=None)

    def previous_plan(self) -> Plan | None:
        """Return the plan before the last; None if there was none."""
        return self._applied(self._previous)

    def _applied(self, path: Path) -> Plan | None:
        if not exists(path):
            return None
        from controlplane.files.plans import read_applied

        with _way_out():
            return read_applied(path)

    def write_plans(self, plan: Plan, previous: Plan | None) -> None:
        """Write the present and the previous plan."""
        from controlplane.files.plans import write_plan

        if previous is not None:
            write_plan(self._previous, previous)
        write_plan(self._plan, plan)

    def record(self) -> Record:
        """Return what was pinned with the present and with the previous plan."""
        from controlplane.files.pinned import read_record

        with _way_out():
            return read_record(self._pinned)

    def write_record(self, record: Record) -> None:
        """Replace the record of pinned models; before the plan of it, so that none is without."""
        from controlplane.files.pinned import write_record

        write_record(self._pinned, record)

    def append_journal(self, wall_s: float, event: str, details: Mapping[str, Any]) -> None:
        """Append one line to the journal. Not waited for: nothing is replayed from it."""
        try:
            self.make()
            append_line(self._journal, {"at": round(wall_s, 3), "event": event, **details})
        except OSError as error:
            raise EngineError(f"{self._journal}: cannot be written: {error.strerror}") from error


def fleets(root: Path) -> list[str]:
    """Return the names of all fleets that were applied and not destroyed."""
    if not exists(root):
        return []
    return sorted(p.name for p in root.iterdir() if FleetFiles(root, p.name).exists())


def write_guarding(path: Path, partitions: Sequence[Guarding]) -> None:
    """Replace the file. Raises EngineError where the disk refuses."""
    write_derived(path, to_json(versioned({"partitions": partitions})))


def read_guarding(path: Path) -> tuple[Guarding, ...]:
    """Read the file; nothing where there is none or a power cut damaged it: the next change renews it."""
    try:
        return read_listed(path, "partitions", Guarding)
    except InputError:
        return ()
