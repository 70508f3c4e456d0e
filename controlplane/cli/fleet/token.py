"""`ctl token`: the clients of a fleet and the endpoints that they may call."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from controlplane.cli import completers, options, wiring
from controlplane.cli.output import answer
from controlplane.files.gateway.clients import Client

token = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Grant and revoke clients' access to endpoints.",
)


@token.command(
    "create",
    short_help="Add a client and print its token.",
    epilog="Example: ctl token create shop --endpoint resnet50 --max-rate 200",
)
def create(
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
            "--certificate", help="Common name of its certificate (--tls-client-ca), in place of a token."
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
def list_(fleet: options.Fleet = options.DEFAULT_FLEET, json: options.Json = False) -> None:
    """Print every client with its grants and limits."""
    clients = wiring.clients(fleet).clients()
    document = {"fleet": fleet, "clients": [_document(client) for client in clients]}
    answer(document, "\n".join(map(_line, clients)), json=json)


def _line(client: Client) -> str:
    credential = "token" if client.certificate is None else f"certificate {client.certificate}"
    grants = ", ".join((*client.endpoints, *(("operator",) if client.operator else ())))
    limited = f"; {client.limit.described()}" if client.limit else ""
    return f"{client.name}: {credential}; {grants}{limited}"


def _document(client: Client) -> dict[str, Any]:
    """Return a client as JSON, without what protects it: its token's hash and the names of its regions."""
    shown = ("name", "endpoints", "certificate", "operator")
    return {**{field: getattr(client, field) for field in shown}, "limit": client.limit}


@token.command("revoke", short_help="Remove a client.", epilog="Example: ctl token revoke shop")
def revoke(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The client's name.", autocompletion=completers.clients)
    ],
    fleet: options.Fleet = options.DEFAULT_FLEET,
    json: options.Json = False,
) -> None:
    """Remove a client: its next request is refused, on open connections too."""
    wiring.clients(fleet).revoke(name)
    answer({"fleet": fleet, "revoked": name}, "", json=json)
