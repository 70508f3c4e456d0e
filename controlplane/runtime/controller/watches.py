"""What is watched beside the loop: the gateway's processes, and the repository against what was applied.

The supervisor starts what dies, and the facade the supervisor: where both died, only the controller is left.
The repository has a thread of its own: a network file system may not answer, and a changed file may be large.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Sequence
from pathlib import Path

from controlplane.domain.errors import LogOnce, TrisectError
from controlplane.domain.observation import Event
from controlplane.files.pinned import Pin
from controlplane.files.pinned.content import Drift, Seen, drift
from controlplane.gateway.processes import FACADE, SUPERVISOR
from controlplane.ports import Gateway
from controlplane.runtime.controller.executor import Actor, Notice
from controlplane.runtime.fleet.fleet import Fleet

_GATEWAY_EVERY_S = 1.0
_PATIENCE_S = 3.0
"""The facade starts the next supervisor within a second or two, with the sockets that it holds."""


class GatewayWatch:
    """Looks once a second; `look` never waits."""

    def __init__(self, gateway: Gateway, actor: Actor) -> None:
        self._gateway = gateway
        self._actor = actor
        self._looked_s = -math.inf
        self._whole_s = 0.0
        self.missing: tuple[str, ...] = ()
        self.trouble = ""

    def look(self, now: float) -> None:
        """Look, and start a supervisor that is missing without a facade, or for longer than that takes."""
        if now - self._looked_s < _GATEWAY_EVERY_S:
            return
        first, self._looked_s = math.isinf(self._looked_s), now
        try:
            self.missing, self.trouble = self._gateway.missing(), ""
        except OSError:
            return  # unknown is not missing
        if first or not self.missing:
            self._whole_s = now
        orphaned = {FACADE, SUPERVISOR} <= set(self.missing)
        if not self.missing or (now - self._whole_s < _PATIENCE_S and not orphaned):
            return
        self.trouble = f"gateway down: {', '.join(self.missing)} not running"
        if SUPERVISOR in self.missing:
            try:
                with self._actor.hold_fleet():
                    self._actor.restore_gateway()
            except TrisectError as error:
                self.trouble += f"; {error}"


_LOOK_S = 10.0
_NAMED = 5
"""So many files are named of each kind."""


class DriftWatch:
    """Reports each difference once."""

    def __init__(self, fleet: Fleet, notice: Notice) -> None:
        self._fleet = fleet
        self._notice = notice
        self._known: dict[str, Seen] = {}
        self._once = LogOnce()

    def start(self, stop: threading.Event) -> None:
        """Look again and again until `stop` is set, in a thread that its program does not wait for."""

        def run() -> None:
            while not stop.wait(_LOOK_S):
                with contextlib.suppress(TrisectError):  # the record cannot be read now: the loop reports it
                    self.look()

        threading.Thread(target=run, name="drift", daemon=True).start()

    def look(self) -> None:
        """Compare once."""
        applied = self._fleet.files.record().applied
        for model, pin in ({} if applied is None else applied.models).items():
            said = self._said(pin)
            if self._once.is_new(said, model):
                level, reason = (
                    ("warning", said) if said else ("info", "the repository is again as it was applied")
                )
                self._notice(Event(self._fleet.clock.wall(), level, "drift", model, reason))

    def _said(self, pin: Pin) -> str:
        """Return how the repository differs from a model's pin; nothing where it does not."""
        try:
            found = drift(pin.folders, pin.files, self._known, self._fleet.pinning.digest)
        except (OSError, TrisectError) as error:
            return f"the repository cannot be compared with what was applied: {error}"
        if found == Drift((), (), ()):
            return ""
        root = Path(pin.folders[0]).parent
        kinds = {"changed": found.changed, "added": found.added, "missing": found.missing}
        files = "; ".join(f"{kind}: {_names(paths, root)}" for kind, paths in kinds.items() if paths)
        served = (
            "servers serve what was applied until `ctl apply`"
            if self._fleet.pinning.copies
            else "pods that start from now on read the volume as it is; `ctl apply` replaces those that run"
        )
        return f"{root} is not as it was applied: {files}; {served}"


def _names(paths: Sequence[str], root: Path) -> str:
    names = [str(Path(path).relative_to(root)) for path in paths]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
