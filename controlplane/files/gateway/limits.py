"""Limits of endpoints, which hold for all clients together, and refusals, which end by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.files.documents import read_state, versioned
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


def check(endpoint: str, limit: Limit) -> None:
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
