"""The client of each request that HAProxy passes on, and its grants.

Only the fleet's own user can connect to the facade, so what HAProxy says of a client needs no proof.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.files.gateway import GatewaySettings
from controlplane.gateway.facade.fleet_wide.regions import ANY_REGION, Regions
from controlplane.gateway.security.access import CLIENT_HEADER, Access

NOT_GRANTED = "this client may not call this endpoint"
NO_OPERATOR = "this client is no operator, so it may not make fleet-wide calls"
CALLER = "caller"
"""Where a request over HTTP carries its `Caller`."""
OWN_HEADERS = frozenset({CLIENT_HEADER})
"""Between HAProxy and the facade; no server gets them."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A client's permissions; `access` is None in a fleet without tokens, where everything is permitted."""

    name: str
    access: Access | None

    def may_call(self, endpoint: str) -> bool:
        """Return whether the client may call an endpoint, now."""
        return self.access is None or self.access.allows(self.name, endpoint)

    @property
    def may_operate(self) -> bool:
        """Whether the client may make fleet-wide calls."""
        client = None if self.access is None else self.access.client(self.name)
        return self.access is None or (client is not None and client.operator)

    @property
    def max_body_bytes(self) -> int | None:
        """The largest body that the client may send; None where only the fleet's limit holds."""
        client = None if self.access is None else self.access.client(self.name)
        return None if client is None else client.limit.max_body_bytes

    @property
    def regions(self) -> Regions:
        """The shared-memory names that the client may use."""
        if self.access is None:
            return ANY_REGION
        client = self.access.client(self.name)
        return Regions(self.name, (client and client.region_prefix) or None)


class Callers:
    """Tells the client of a request by its header: only a HAProxy whose clients need tokens sets one."""

    def __init__(self, clients: Path, settings: GatewaySettings) -> None:
        self._access = Access(clients)
        self._nameless = False
        self.take(settings)

    def take(self, settings: GatewaySettings) -> None:
        """Follow these from now on; a HAProxy that is being replaced may still have other rules."""
        former = settings.former
        self._nameless = not settings.protection.tokens or (former is not None and not former.tokens)

    def of(self, headers: Mapping[str, str]) -> Caller | None:
        """Return the caller of a request; None for one without a client where each needs one."""
        name = headers.get(CLIENT_HEADER)
        if name is not None:
            return Caller(name, self._access)
        return Caller("", None) if self._nameless else None
