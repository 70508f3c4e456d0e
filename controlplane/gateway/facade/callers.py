"""The client of each request that HAProxy passes on, and its grants."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.files.gateway import GatewaySettings
from controlplane.gateway.facade.fleet_wide.regions import ANY_REGION, Regions
from controlplane.gateway.security.access import CLIENT_HEADER, SECRET_HEADER, Access

NOT_GRANTED = "this client may not call this endpoint"
NO_OPERATOR = "this client is no operator, so it may not make fleet-wide calls"
CALLER = "caller"
"""Where a request over HTTP carries its `Caller`."""
OWN_HEADERS = frozenset({CLIENT_HEADER, SECRET_HEADER})
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
    """Recognises HAProxy by the secret that both know; one that is being replaced has the secret before."""

    def __init__(self, clients: Path, settings: GatewaySettings) -> None:
        self._access = Access(clients)
        self._accesses: dict[str, Access | None] = {}
        self.take(settings)

    def take(self, settings: GatewaySettings) -> None:
        """Recognise these from now on."""
        self._accesses = {settings.facade_secret: self._access if settings.protection.tokens else None}
        if (former := settings.former) is not None:
            self._accesses[former.secret] = self._access if former.tokens else None

    def of(self, headers: Mapping[str, str]) -> Caller | None:
        """Return the caller of a request; None for one that did not pass HAProxy."""
        given = headers.get(SECRET_HEADER, "").encode()
        for secret, access in self._accesses.items():
            if hmac.compare_digest(given, secret.encode()):
                return Caller(headers.get(CLIENT_HEADER, ""), access)
        return None
