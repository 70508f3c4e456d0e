"""Which of the gateway's processes are missing, and a start of their supervisor where nothing else starts it.

The supervisor starts what dies, and the facade the supervisor: where both died, only the controller is left.
"""

from __future__ import annotations

import math

from controlplane.domain.errors import TrisectError
from controlplane.gateway.processes import FACADE, SUPERVISOR
from controlplane.ports import Gateway
from controlplane.runtime.controller.actor import Actor

_EVERY_S = 1.0
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
        if now - self._looked_s < _EVERY_S:
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
