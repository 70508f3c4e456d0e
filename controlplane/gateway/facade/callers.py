"""The client of each request that HAProxy passes on, its grants, and its shared-memory regions.

Only the fleet's own user can connect to the facade, so what HAProxy says of a client needs no proof.

An inference names regions inside its body, which the gateway does not read. So a name is a secret: each
client's names begin with a random text that other clients do not know. A key names memory of the host, which
every process of the host can list, so keys begin with the client's name, and registering one of another
client is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grpc import StatusCode

from controlplane.files.gateway import GatewaySettings
from controlplane.files.gateway.access import Client, read_clients
from controlplane.files.reading import Remembered
from controlplane.gateway.facade.refusals import Refusal

CALLER = "caller"
"""Where a request over HTTP carries its `Caller`."""
CLIENT_HEADER = "x-trisect-client"
"""HAProxy tells the facade the client's name in it, where clients need tokens."""
OWN_HEADERS = frozenset({CLIENT_HEADER})
"""Between HAProxy and the facade; no server gets them."""


@dataclass(frozen=True, slots=True)
class Regions:
    """The regions of one client, all where `prefix` is empty."""

    client: str
    prefix: str

    def owns(self, name: str) -> bool:
        """Return whether a region is this client's."""
        return not self.prefix or (name.startswith(self.prefix) and name != self.prefix)

    def check(self, name: str, key: str | None = None) -> None:
        """Raise Refusal for another client's region or memory; `key` is None for memory of a GPU."""
        if not self.owns(name):
            raise _not_owned(f"the names of this client's regions begin with {self.prefix!r}")
        if self.prefix and key is not None and not key.lstrip("/").startswith(f"{self.client}."):
            raise _not_owned(f"the keys of this client's regions begin with '/{self.client}.'")


def _not_owned(words: str) -> Refusal:
    return Refusal(StatusCode.PERMISSION_DENIED, words)


ANY_REGION = Regions("", "")
"""Without tokens there are no identities, so all clients share one space of names."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A client's permissions; `clients` is None in a fleet without tokens, where everything is permitted."""

    name: str
    clients: Remembered[dict[str, Client]] | None

    def may_call(self, endpoint: str) -> bool:
        """Return whether the client may call an endpoint, now."""
        return self.clients is None or ((client := self._client) is not None and client.allows(endpoint))

    def check_call(self, endpoint: str) -> None:
        """Raise Refusal where the client may not call an endpoint."""
        if not self.may_call(endpoint):
            raise Refusal(StatusCode.PERMISSION_DENIED, "this client may not call this endpoint")

    @property
    def may_operate(self) -> bool:
        """Whether the client may make fleet-wide calls."""
        return self.clients is None or ((client := self._client) is not None and client.operator)

    @property
    def max_body_bytes(self) -> int | None:
        """The largest body that the client may send; None where only the fleet's limit holds."""
        return None if (client := self._client) is None else client.limit.max_body_bytes

    @property
    def _client(self) -> Client | None:
        """The client as it is now; None for one that was revoked."""
        return None if self.clients is None else self.clients.get().get(self.name)

    @property
    def regions(self) -> Regions:
        """The shared-memory names that the client may use. Raises Refusal for one that may use none."""
        if self.clients is None:
            return ANY_REGION
        if (client := self._client) is None or not client.region_prefix:
            raise _not_owned("this client is no operator, so it has no regions")
        return Regions(self.name, client.region_prefix)


class Callers:
    """Tells the client of a request by its header: only a HAProxy whose clients need tokens sets one."""

    def __init__(self, clients: Path, settings: GatewaySettings) -> None:
        self._clients = Remembered(clients, lambda: {client.name: client for client in read_clients(clients)})
        self._nameless = False
        self.take(settings)

    def take(self, settings: GatewaySettings) -> None:
        """Follow these from now on; a HAProxy that is being replaced may still have other rules."""
        former = settings.former
        self._nameless = not settings.protection.tokens or (former is not None and not former.tokens)

    def of(self, headers: Mapping[str, str]) -> Caller:
        """Return the caller of a request. Raises Refusal for one without a client where each needs one."""
        name = headers.get(CLIENT_HEADER)
        if name is not None:
            return Caller(name, self._clients)
        if not self._nameless:
            raise Refusal(StatusCode.UNAUTHENTICATED, "requests reach this port through the gateway only")
        return Caller("", None)
