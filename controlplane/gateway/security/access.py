"""Clients and limits as HAProxy's maps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controlplane.files.gateway.access import Client, Limit, Refusals


def clients_map(clients: Iterable[Client]) -> dict[str, str]:
    """Credential -> client. HAProxy's `hex` has capitals."""
    found = {}
    for client in clients:
        if client.token_sha256 is not None:
            found[client.token_sha256.upper()] = client.name
        if client.certificate is not None:
            found[f"cn={client.certificate}"] = client.name
    return found


def grants_map(clients: Iterable[Client]) -> dict[str, str]:
    """`client/endpoint` -> 1; the endpoint may be `*`."""
    return {f"{client.name}/{endpoint}": "1" for client in clients for endpoint in client.endpoints}


def client_limits_map(clients: Iterable[Client]) -> dict[str, str]:
    """Client -> its limits, of those that have any."""
    return {client.name: _limits_text(client.limit) for client in clients if client.limit}


def endpoint_limits_map(limits: Mapping[str, Limit]) -> dict[str, str]:
    """Endpoint -> its limits, of those that have any."""
    return {endpoint: _limits_text(limit) for endpoint, limit in limits.items()}


def refusals_map(refusals: Refusals) -> dict[str, str]:
    """Endpoint, or `client/endpoint`, -> the second until which it is refused."""
    return {
        f"{client}/{endpoint}" if client else endpoint: str(s) for (endpoint, client), s in refusals.items()
    }


def _limits_text(limit: Limit) -> str:
    """Return `rate/requests/bytes`; 0 is no limit."""
    return f"{limit.max_rate_rps or 0}/{limit.max_requests or 0}/{limit.max_body_bytes or 0}"
