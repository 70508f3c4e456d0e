"""`ctl token` and `ctl limit`: which clients may call which endpoints, and how much."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from controlplane.cli import completers, options
from controlplane.cli.output import answer


def _verbs(help: str) -> typer.Typer:
    return typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=help)


token = _verbs("Grant and revoke clients' access to endpoints.")


@token.command(
    "create",
    short_help="Add a client and print its token.",
    epilog="Example: ctl token create shop --endpoint resnet50 --max-rate 200",
)
def create_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The client's name, as in the audit log.")],
    endpoint: Annotated[
        list[str] | None,
        typer.Option(
            "--endpoint",
            help="An endpoint it may call, or *; may be repeated.",
            autocompletion=completers.endpoints,
        ),
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(
            "--certificate", help="Common name of its certificate (serve.tls.client_ca), in place of a token."
        ),
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="Allow fleet-wide calls and the page of metrics.")
    ] = False,
    max_rate: options.MaxRate = None,
    max_requests: options.MaxRequests = None,
    max_body: options.MaxBody = None,
    fleet: options.Fleet = options.DEFAULT_FLEET,
    json: options.Json = False,
) -> None:
    """Add a client and print its token, which cannot be shown again: only its hash is kept.

    Clients send it as `Authorization: Bearer TOKEN`, over gRPC as metadata `authorization`.
    """
    from controlplane.cli import wiring
    from controlplane.files.gateway.access import Client

    client = Client(
        name,
        tuple(endpoint or ()),
        certificate=certificate,
        operator=operator,
        max_rate_rps=max_rate,
        max_requests=max_requests,
        max_body_bytes=max_body,
    )
    made = wiring.clients(fleet).create(client)
    answer({"fleet": fleet, "client": name, "token": made}, made or "", json=json)


@token.command("list", epilog="Example: ctl token list --fleet shop")
def list_tokens(fleet: options.Fleet = options.DEFAULT_FLEET, json: options.Json = False) -> None:
    """Print every client with its grants and limits."""
    from controlplane.cli import wiring

    documents, lines = [], []
    for client in wiring.clients(fleet).clients():
        # Without what protects it: its token's hash and the names of its regions.
        shown = {key: getattr(client, key) for key in ("name", "endpoints", "certificate", "operator")}
        documents.append({**shown, "limit": client.limit})
        credential = "token" if client.certificate is None else f"certificate {client.certificate}"
        grants = ", ".join((*client.endpoints, *(("operator",) if client.operator else ())))
        limited = f"; {client.limit.described()}" if client.limit else ""
        lines.append(f"{client.name}: {credential}; {grants}{limited}")
    answer({"fleet": fleet, "clients": documents}, "\n".join(lines), json=json)


@token.command("revoke", short_help="Remove a client.", epilog="Example: ctl token revoke shop")
def revoke_token(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The client's name.", autocompletion=completers.clients)
    ],
    fleet: options.Fleet = options.DEFAULT_FLEET,
    json: options.Json = False,
) -> None:
    """Remove a client: its next request is refused, on open connections too."""
    from controlplane.cli import wiring

    wiring.clients(fleet).revoke(name)
    answer({"fleet": fleet, "revoked": name}, "", json=json)


limit = _verbs("Limit the requests of an endpoint.")
_Endpoint = Annotated[
    str, typer.Argument(metavar="ENDPOINT", help="The endpoint's name.", autocompletion=completers.endpoints)
]


@limit.command(
    "set",
    short_help="Limit an endpoint.",
    epilog="Example: ctl limit set resnet50 --max-rate 500 --max-requests 64 --max-body 4000000",
)
def set_limit(
    endpoint: _Endpoint,
    max_rate: options.MaxRate = None,
    max_requests: options.MaxRequests = None,
    max_body: options.MaxBody = None,
    fleet: options.Fleet = options.DEFAULT_FLEET,
    json: options.Json = False,
) -> None:
    """Give an endpoint these limits, in place of those it has; effective at once, for all clients together.

    Inferences beyond them are refused: 429 with Retry-After, over gRPC RESOURCE_EXHAUSTED.
    """
    from controlplane.cli import wiring
    from controlplane.files.gateway.access import Limit

    given = Limit(max_rate, max_requests, max_body)
    wiring.limits(fleet).set(endpoint, given)
    answer({"fleet": fleet, "endpoint": endpoint, "limit": given}, "", json=json)


@limit.command("list", epilog="Example: ctl limit list --fleet shop")
def list_limits(fleet: options.Fleet = options.DEFAULT_FLEET, json: options.Json = False) -> None:
    """Print every endpoint that has limits, and what is refused because its requests crashed servers."""
    from controlplane.cli import wiring
    from controlplane.files.gateway.access import refused

    held, now_s = wiring.limits(fleet).held(), time.time()
    rows = [
        {"endpoint": endpoint, "client": client or None, "seconds_left": round(until_s - now_s)}
        for (endpoint, client), until_s in held.refusals.items()
        if refused(until_s, now_s)
    ]
    lines = [f"{endpoint}: {present.described()}" for endpoint, present in held.limits.items()]
    for one in rows:
        whose = f"{one['endpoint']}, client {one['client']}" if one["client"] else one["endpoint"]
        lines.append(f"{whose}: refused for {one['seconds_left']} s: its requests crashed servers")
    answer({"fleet": fleet, "limits": held.limits, "refused": rows}, "\n".join(lines), json=json)


@limit.command(
    "remove", short_help="Remove an endpoint's limits.", epilog="Example: ctl limit remove resnet50"
)
def remove_limit(
    endpoint: _Endpoint, fleet: options.Fleet = options.DEFAULT_FLEET, json: options.Json = False
) -> None:
    """Remove an endpoint's limits, at once, and end a refusal of its requests."""
    from controlplane.cli import wiring

    wiring.limits(fleet).remove(endpoint)
    answer({"fleet": fleet, "removed": endpoint}, "", json=json)
