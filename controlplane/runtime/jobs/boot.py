"""Whether a fleet's controller, which starts everything else, is started when the host boots."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.ports import Capability

_UNITS = "docs/systemd, docs/operations.md section 4"


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
        return Capability(name, False, f"no enabled unit {unit}: nothing is served until `ctl serve`", _UNITS)
    if not places.lingering.exists():
        remedy = f"loginctl enable-linger {places.lingering.name}"
        return Capability(name, False, f"{unit} starts only when its user logs in", remedy)
    return Capability(name, True, f"{unit} starts without a login")


def _enabled(folder: Path, unit: str) -> bool:
    return any((wants / unit).is_symlink() for wants in folder.glob("*.target.wants"))
