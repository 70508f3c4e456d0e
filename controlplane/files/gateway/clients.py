"""The gateway's clients: their grants and limits, with tokens as hashes only."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.files.documents import read_listed, versioned
from controlplane.files.gateway.limits import Limit
from controlplane.files.writing import write_json

ANY = "*"
"""In place of an endpoint: all of them."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Client:
    """A client, known by a token or by the common name of its certificate.

    `operator` allows fleet-wide calls. `region_prefix` begins the names of its shared-memory regions: other
    clients do not know it.
    """

    name: str
    endpoints: tuple[str, ...]
    token_sha256: str | None = None
    certificate: str | None = None
    operator: bool = False
    max_rate_rps: int | None = None
    max_requests: int | None = None
    max_body_bytes: int | None = None
    region_prefix: str | None = None

    @property
    def limit(self) -> Limit:
        """The limits of its inferences."""
        return Limit(self.max_rate_rps, self.max_requests, self.max_body_bytes)

    def allows(self, endpoint: str) -> bool:
        """Return whether the client may call an endpoint."""
        return ANY in self.endpoints or endpoint in self.endpoints


def hashed(token: str) -> str:
    """Return what is kept of a token. It has 256 random bits, so one round of SHA-256 cannot be reversed."""
    return hashlib.sha256(token.encode()).hexdigest()


def check(client: Client) -> None:
    """Refuse a client that the gateway's maps cannot hold. Raises InputError."""
    for field, text in (("NAME", client.name), ("--certificate", client.certificate or "x")):
        if _NAME.fullmatch(text) is None:
            raise InputError(f"{text!r}: use 1 to 64 letters, digits or any of _ . -", field=field)
    if not client.endpoints and not client.operator:
        raise InputError("grants nothing; give an endpoint, or * for all", field="--endpoint")
    for endpoint in client.endpoints:
        if not endpoint or any(c.isspace() for c in endpoint):
            raise InputError(f"{endpoint!r} is no endpoint's name", field="--endpoint")


def operates_with(authorization: str, certificate: str | None, clients: Iterable[Client]) -> bool:
    """Return whether an Authorization header or a certificate's common name is an operator's."""
    token = _token_in(authorization)
    given = None if token is None else hashed(token)
    shown = {("token", given), ("certificate", certificate)} - {("token", None), ("certificate", None)}
    return any(
        c.operator and {("token", c.token_sha256), ("certificate", c.certificate)} & shown for c in clients
    )


def _token_in(authorization: str) -> str | None:
    """Return the token: a bearer's, or what a browser's user gave as the password."""
    scheme, _, given = authorization.partition(" ")
    match scheme.lower():
        case "bearer":
            return given.strip()
        case "basic":
            with contextlib.suppress(ValueError):
                return base64.b64decode(given, validate=True).decode().partition(":")[2]
    return None


def read_clients(path: Path) -> tuple[Client, ...]:
    """Return all clients; none without a file. Raises InputError where it is broken."""
    return read_listed(path, "clients", Client)


def write_clients(path: Path, clients: Iterable[Client]) -> None:
    """Replace the file, readable by its user only. Raises EngineError where the disk refuses."""
    write_json(path, versioned({"clients": tuple(clients)}))
    os.chmod(path, 0o600)
