"""The versions of running servers, from their metadata."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import httpx

from controlplane.domain.fleet import Server, ServerState
from controlplane.monitor.inference import plain_client

_ANSWER_S = 2.0
_AT_ONCE = 8


def versions(servers: Iterable[Server]) -> tuple[str, ...]:
    """Return the version of each running server that answers."""
    running = [server for server in servers if server.state is ServerState.RUNNING]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return tuple(version for version in pool.map(_version, running) if version)


def _version(server: Server) -> str:
    try:
        with plain_client(_ANSWER_S) as client:
            metadata = client.get(f"http://{server.host}:{server.http_port}/v2").json()
    except (httpx.HTTPError, ValueError):
        return ""
    version = metadata.get("version", "") if isinstance(metadata, dict) else ""
    return version if isinstance(version, str) else ""
