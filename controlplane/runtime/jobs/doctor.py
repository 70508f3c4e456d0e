"""Checks of this host's capabilities. Each one is tried, not assumed."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from controlplane.domain import triton_releases
from controlplane.domain.errors import EngineError, MissingTool
from controlplane.gateway.running import reuses_grpc, version_numbers
from controlplane.gateway.startup import haproxy_program
from controlplane.ports import Capability, Launcher


def examine(launchers: tuple[Launcher, ...], fleets: Sequence[str] = ()) -> tuple[Capability, ...]:
    """Return every capability that Trisect can use, present or missing, with the way to get it.

    `fleets` are the names of the fleets of this host, whose servers' versions are checked.
    """
    found = [
        Capability(
            "python", sys.version_info >= (3, 11), sys.version.split()[0], "install Python 3.11 or newer"
        ),
        Capability("trisect", True, metadata.version("trisect")),
        Capability(
            "cores", True, f"{len(os.sched_getaffinity(0))} usable: {sorted(os.sched_getaffinity(0))}"
        ),
        _haproxy(),
    ]
    for launcher in launchers:
        own = launcher.capabilities()
        found.extend(own)
        found.append(_shares(launcher, own))
        found += [state for fleet in fleets if (state := _versions(launcher, fleet)) is not None]
    places = BootPlaces.here(os.environ)
    found += [after_boot(fleet, places) for fleet in fleets]
    return tuple(dict.fromkeys(found))  # two launchers of this host have the same GPUs


def _versions(launcher: Launcher, fleet: str) -> Capability | None:
    """Whether the fleet's servers have all known fixes; None where none of this launcher's answers."""
    from controlplane.triton.client import versions

    try:
        found = versions(launcher.servers(fleet))
    except EngineError:
        return None
    if not found:
        return None
    problem = triton_releases.warning(found)
    name = f"fleet {fleet}"
    if problem is None:
        return Capability(name, True, f"Triton {', '.join(sorted(set(found)))}")
    return Capability(name, False, problem, "docs/quickstart-gpu.md, Images")


def _shares(launcher: Launcher, own: Sequence[Capability]) -> Capability:
    name, held = f"{launcher.name} shares", launcher.enforcement()
    if held is not None:
        return Capability(name, True, f"shares are held by {held}")
    for needed in own:
        # A launcher without its engine cannot know which shares the host can enforce.
        if needed.name == launcher.name and not needed.available:
            return Capability(name, False, needed.detail, f"see {needed.name}")
    remedy = "run as root, in a delegated cgroup, or where systemd-run --user works"
    return Capability(name, False, "shares are not enforced on this host", remedy)


def _haproxy() -> Capability:
    remedy = "apt-get install haproxy"
    try:
        path = haproxy_program()
    except MissingTool:
        return Capability("haproxy", False, "not found", remedy)
    said = subprocess.run([path, "-vv"], capture_output=True, text=True, timeout=10, check=False).stdout
    lacking = [name for name in ("LUA", "PCRE") if f"+{name}" not in said]
    if lacking:
        return Capability("haproxy", False, f"built without {' and '.join(lacking)}", remedy)
    version = said.split("\n")[0].split(" 20")[0].strip()
    if (3, 2, 0) <= version_numbers(version) < (3, 2, 2):
        # Its `leastconn` loops over a server that does not answer, until a watchdog ends the process.
        return Capability(
            "haproxy", False, f"{version} ends itself when a server dies", "install 3.2.2 or later"
        )
    cost = (
        ""
        if reuses_grpc(version)
        else "; opens a connection for each gRPC request to later servers, unlike 2.6.18, 2.8.10 and 3.0"
    )
    return Capability("haproxy", True, f"{version}{cost}", remedy)


_UNITS = "docs/systemd, docs/upgrades.md"


@dataclass(frozen=True, slots=True)
class BootPlaces:
    """Where systemd keeps enabled units of the system and of a user, and who lingers."""

    system: Path
    user: Path
    lingering: Path

    @classmethod
    def here(cls, environment: Mapping[str, str]) -> BootPlaces:
        """Return the places of this host and user."""
        config = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        user = config / "systemd" / "user"
        return cls(Path("/etc/systemd/system"), user, Path("/var/lib/systemd/linger", getpass.getuser()))


def after_boot(fleet: str, places: BootPlaces) -> Capability:
    """Whether a unit starts the fleet's controller at boot, and otherwise what is missing."""
    name, unit = f"fleet {fleet} after a boot", f"trisect@{fleet}.service"
    if _enabled(places.system, unit):
        return Capability(name, True, f"the system starts {unit}")
    if not _enabled(places.user, unit):
        return Capability(
            name, False, f"no enabled unit {unit}: nothing is served until `ctl controller`", _UNITS
        )
    if not places.lingering.exists():
        remedy = f"loginctl enable-linger {places.lingering.name}"
        return Capability(name, False, f"{unit} starts only when its user logs in", remedy)
    return Capability(name, True, f"{unit} starts without a login")


def _enabled(folder: Path, unit: str) -> bool:
    return any((wants / unit).is_symlink() for wants in folder.glob("*.target.wants"))
