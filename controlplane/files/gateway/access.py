"""Files of access: clients with their grants, tokens as hashes only, and limits of endpoints.

An endpoint's limits hold for all clients together; a refusal ends by itself.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.files.documents import read_listed, read_state, versioned
from controlplane.files.writing import fields_of, write_json


@dataclass(frozen=True, slots=True)
class Limit:
    """Limits of the inferences of one client or one endpoint; None is no limit.

    At most `max_requests` run at once, `max_rate_rps` begin in a second, and each has a body of at most
    `max_body_bytes`.
    """

    max_rate_rps: int | None = None
    max_requests: int | None = None
    max_body_bytes: int | None = None

    def __bool__(self) -> bool:
        """Return whether anything is limited."""
        return self != Limit()

    def described(self) -> str:
        """Return the limits in words; empty without one."""
        parts = (
            (self.max_rate_rps, "requests a second"),
            (self.max_requests, "requests at once"),
            (self.max_body_bytes, "bytes a body"),
        )
        return "; ".join(f"{limit} {what}" for limit, what in parts if limit is not None)


NO_LIMIT = Limit()

Refusals = Mapping[tuple[str, str], int]
"""Endpoint and client (empty: all clients) -> the second until which inferences are refused."""

REFUSED = "requests of this endpoint crashed its servers: they are refused for a while"
REMEMBERED_S = 600
"""So long after a refusal a request that a dead server held is not sent to a second one."""
LONGEST_S = 660
"""No refusal is as long: one that ends later was made before the clock was set back, and is over."""


@dataclass(frozen=True, slots=True)
class Held:
    """What holds for the requests of endpoints; refusals also of late, which have ended."""

    limits: Mapping[str, Limit] = field(default_factory=dict)
    refusals: Refusals = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Limited(Limit):
    endpoint: str = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class _Refusal:
    endpoint: str
    client: str
    until_s: int


@dataclass(frozen=True, slots=True)
class _File:
    """One, since a full disk could refuse the second of two."""

    limits: tuple[_Limited, ...] = ()
    refusals: tuple[_Refusal, ...] = ()


def refused(until_s: float, now_s: float) -> bool:
    """Return whether a refusal until then holds now; both in seconds since the epoch."""
    return now_s < until_s <= now_s + LONGEST_S


def remembered(until_s: float, now_s: float) -> bool:
    """Return whether a refusal until then holds now, or did a while ago."""
    return now_s - REMEMBERED_S < until_s <= now_s + LONGEST_S


def check_limit(endpoint: str, limit: Limit) -> None:
    """Refuse what the gateway's maps cannot hold, and a limit that limits nothing. Raises InputError."""
    if not endpoint or any(c.isspace() or not c.isprintable() for c in endpoint) or endpoint[0] == "#":
        raise InputError(f"{endpoint!r} is no endpoint's name", field="ENDPOINT")
    if not limit:
        problem = "limits nothing; give --max-rate, --max-requests or --max-body, or use `ctl limit remove`"
        raise InputError(problem, field="ENDPOINT")


def read_held(path: Path) -> Held:
    """Return what holds; nothing without a file. Raises InputError where it is broken."""
    found = read_state(path, _File) or _File()
    return Held(
        {one.endpoint: Limit(one.max_rate_rps, one.max_requests, one.max_body_bytes) for one in found.limits},
        {(one.endpoint, one.client): one.until_s for one in found.refusals},
    )


def write_held(path: Path, held: Held) -> None:
    """Replace the file in one step. Raises EngineError where the disk refuses."""
    limits = tuple(_Limited(**fields_of(limit), endpoint=name) for name, limit in held.limits.items())
    refusals = tuple(_Refusal(*key, until_s) for key, until_s in held.refusals.items())
    write_json(path, versioned(_File(limits, refusals)))


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


def check_client(client: Client) -> None:
    """Refuse a client that the gateway's maps cannot hold. Raises InputError."""
    for about, text in (("NAME", client.name), ("--certificate", client.certificate or "x")):
        if _NAME.fullmatch(text) is None:
            raise InputError(f"{text!r}: use 1 to 64 letters, digits or any of _ . -", field=about)
    if not client.endpoints and not client.operator:
        raise InputError("grants nothing; give an endpoint, or * for all", field="--endpoint")
    for endpoint in client.endpoints:
        if not endpoint or any(c.isspace() for c in endpoint):
            raise InputError(f"{endpoint!r} is no endpoint's name", field="--endpoint")


def operates_with(authorization: str, certificate: str | None, clients: Iterable[Client]) -> bool:
    """Return whether an Authorization header or a certificate's common name is an operator's."""
    scheme, _, given = authorization.partition(" ")
    token = hashed(given.strip()) if scheme.lower() == "bearer" else None
    if scheme.lower() == "basic":
        # A browser's user gives it as the password.
        with contextlib.suppress(ValueError):
            token = hashed(base64.b64decode(given, validate=True).decode().partition(":")[2])
    return any(
        client.operator
        and (
            (token is not None and client.token_sha256 == token)
            or (certificate is not None and client.certificate == certificate)
        )
        for client in clients
    )


def read_clients(path: Path) -> tuple[Client, ...]:
    """Return all clients; none without a file. Raises InputError where it is broken."""
    return read_listed(path, "clients", Client)


def write_clients(path: Path, clients: Iterable[Client]) -> None:
    """Replace the file, readable by its user only. Raises EngineError where the disk refuses."""
    write_json(path, versioned({"clients": tuple(clients)}))
    os.chmod(path, 0o600)
