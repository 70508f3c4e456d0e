"""The client of each request that HAProxy passes on, and its grants."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.gateway.security.access import CLIENT_HEADER, SECRET_HEADER, Access

NOT_GRANTED = "this client may not call this endpoint"
NO_OPERATOR = "this client is no operator, so it may not make fleet-wide calls"
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
        return self.access is None or self.access.operates(self.name)


class Callers:
    """Recognises HAProxy by the secret that both know."""

    def __init__(self, clients: Path | None, secret: str) -> None:
        self._access = None if clients is None else Access(clients)
        self._secret = secret

    def of(self, headers: Mapping[str, str]) -> Caller | None:
        """Return the caller of a request; None for one that did not pass HAProxy."""
        if not hmac.compare_digest(headers.get(SECRET_HEADER, "").encode(), self._secret.encode()):
            return None
        return Caller(headers.get(CLIENT_HEADER, ""), self._access)
