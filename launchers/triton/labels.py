"""Labels: a server's spec and ports as text on the server, from which the fleet's state is read."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.domain.server_options import ServerOptions

FLEET = "TRISECT_FLEET"
NAME = "TRISECT_NAME"
SERVER = "TRISECT_SERVER"

_LONGEST_FILE_NAME = 160
_APART = frozenset({"id", "state", "end", "spec", "labels", "options", "batches"})
"""Fields that change while a server runs, and those that `text_of` writes apart."""

Record = TypeVar("Record")


def text_of(server: Server) -> str:
    """Return everything about a server that does not change while it runs, as one line of JSON."""
    spec = server.spec
    told: dict[str, Any] = {"env": dict(spec.options.env)}
    if spec.batches:
        told["batches"] = spec.batches
    for record in (spec.labels, spec, spec.options, server):
        for field in fields(record):
            if field.init and field.name not in (*_APART, "env"):
                told[field.name] = getattr(record, field.name)
    return json.dumps(told, sort_keys=True, separators=(",", ":"))


def server_of(text: str, *, id: str, state: ServerState) -> Server:
    """Return the server that `text_of` serialized.

    Raises EngineError for labels that lack what this version needs.
    """
    try:
        told = json.loads(text)
        told["role"], told["endpoints"] = Role(told["role"]), tuple(told["endpoints"])
        told["batches"] = tuple((model, batch) for model, batch in told.get("batches", ()))
        options = ServerOptions(tuple(told["triton_args"]), told["env"])
        spec = _record(ServerSpec, {**told, "labels": _record(Labels, told), "options": options})
        return _record(Server, {**told, "id": id, "spec": spec, "state": state})
    except (InputError, ValueError, KeyError, TypeError) as error:
        raise EngineError(
            f"server {id} carries labels this version cannot read ({error!r}): stop it with the version "
            "that started it, or end it by hand"
        ) from error


def _record(kind: type[Record], told: Mapping[str, Any]) -> Record:
    names = (field.name for field in fields(kind) if field.init)  # type: ignore[arg-type]
    return kind(**{name: told[name] for name in names if name in told})


def environment_of(server: Server) -> dict[str, str]:
    """Return the labels as environment variables."""
    return {FLEET: server.spec.labels.fleet, NAME: server.name, SERVER: text_of(server)}


def folder_name(name: str) -> str:
    """Return `name`, cut to the length of a file name, still unique."""
    if len(name) <= _LONGEST_FILE_NAME:
        return name
    return f"{name[:_LONGEST_FILE_NAME]}.{digest(name)}"


def digest(name: str) -> str:
    """Return twelve hex digits that stand for a server's name."""
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def memory_prefix(spec: ServerSpec) -> str:
    """Return the prefix of this server's shared-memory regions. No fleet's name contains `~`."""
    return f"trisect~{spec.labels.fleet}~{digest(spec.name)}~"


def memory_owner(region: str, fleet: str) -> str | None:
    """Return the digest of the server that owns a shared-memory region; None if it is not of `fleet`."""
    found = re.match(rf"trisect~{re.escape(fleet)}~([0-9a-f]{{12}})~", region)
    return found.group(1) if found else None


def spec_difference(wanted: ServerSpec, running: ServerSpec) -> Mapping[str, tuple[object, object]]:
    """Field -> (wanted, running), where two specs of one name differ in what a server cannot change.

    Where the repository lies and which plan it was started for are not among it: the name stands for the
    repository's content, by the revision in it.
    """
    pairs = {field: (value, running.fixed[field]) for field, value in wanted.fixed.items()}
    return {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}
