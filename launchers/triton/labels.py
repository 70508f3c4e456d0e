"""Labels: a server's spec and ports as text on the server, from which the fleet's state is read."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.domain.server_options import ServerOptions

FLEET = "TRISECT_FLEET"
NAME = "TRISECT_NAME"
SERVER = "TRISECT_SERVER"

_LONGEST_FILE_NAME = 160


def text_of(server: Server) -> str:
    """Return everything about a server that does not change while it runs, as one line of JSON."""
    spec, labels = server.spec, server.spec.labels
    return json.dumps(
        {
            "fleet": labels.fleet,
            "plan_hash": labels.plan_hash,
            "partition": labels.partition,
            "role": labels.role.value,
            "revision": labels.revision,
            "repository": spec.repository,
            "endpoints": list(spec.endpoints),
            "device": spec.device,
            "percent": spec.percent,
            "memory_mb": spec.memory_mb,
            "memory_limit_mb": spec.memory_limit_mb,
            "reloads": spec.reloads,
            "fleet_wide_calls": spec.fleet_wide_calls,
            "turns": spec.turns,
            "completes": spec.completes,
            "triton_args": list(spec.options.triton_args),
            "env": dict(spec.options.env),
            "host": server.host,
            "http_port": server.http_port,
            "grpc_port": server.grpc_port,
            "metrics_port": server.metrics_port,
            "enforced_by": server.enforced_by,
            "log_path": server.log_path,
            "reload_key": server.reload_key,
        },
        sort_keys=True,
        separators=(",", ":"),
    )


def server_of(text: str, *, id: str, state: ServerState) -> Server:
    """Return the server that `text_of` serialized.

    A server of a version that locked nothing obeys every call of every process, and is read as such.
    Raises EngineError for labels that lack what this version needs.
    """
    try:
        told = json.loads(text)
        labels = Labels(
            told["fleet"], told["plan_hash"], told["partition"], Role(told["role"]), told["revision"]
        )
        spec = ServerSpec(
            labels,
            told["repository"],
            tuple(told["endpoints"]),
            told["device"],
            told["percent"],
            told["memory_mb"],
            # Earlier versions held every server to its memory.
            told.get("memory_limit_mb", told["memory_mb"]),
            told.get("reloads", True),
            told.get("fleet_wide_calls", True),
            told.get("turns", False),
            told.get("completes", False),
            ServerOptions(tuple(told.get("triton_args", ())), told.get("env", {})),
        )
        return Server(
            id,
            spec,
            state,
            told["host"],
            told["http_port"],
            told["grpc_port"],
            told["metrics_port"],
            told["enforced_by"],
            told["log_path"],
            told.get("reload_key"),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(
            f"server {id} carries labels this version cannot read ({error!r}): stop it with the version "
            "that started it, or end it by hand"
        ) from error


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
