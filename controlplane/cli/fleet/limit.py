"""`ctl limit`: limits of endpoints, which hold for all clients together."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from controlplane.cli import completers, options, wiring
from controlplane.cli.output import answer
from controlplane.files.gateway.limits import Limit, refused

limit = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Limit the requests of an endpoint.",
)
_Endpoint = Annotated[
    str,
    typer.Argument(metavar="ENDPOINT", help="The endpoint's name.", autocompletion=completers.endpoints),
]


@limit.command(
    "set",
    short_help="Limit an endpoint.",
    epilog="Example: ctl limit set resnet50 --max-rate 500 --max-requests 64 --max-body 4000000",
)
def set_(
    endpoint: _Endpoint,
    max_rate: options.MaxRate = None,
    max_requests: options.MaxRequests = None,
    max_body: options.MaxBody = None,
    fleet: options.Fleet = options.DEFAULT_FLEET,
    json: options.Json = False,
) -> None:
    """Give an endpoint these limits, in place of those it has; effective at once, for all clients together.

    Inferences beyond them are refused: 429 with Retry-After over HTTP, RESOURCE_EXHAUSTED over gRPC.
    `ctl token` limits one client.
    """
    given = Limit(max_rate, max_requests, max_body)
    wiring.limits(fleet).set(endpoint, given)
    answer({"fleet": fleet, "endpoint": endpoint, "limit": given}, "", json=json)


@limit.command("list", epilog="Example: ctl limit list --fleet shop")
def list_(fleet: options.Fleet = options.DEFAULT_FLEET, json: options.Json = False) -> None:
    """Print every endpoint that has limits, and what is refused because its requests crashed servers."""
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
def remove(
    endpoint: _Endpoint, fleet: options.Fleet = options.DEFAULT_FLEET, json: options.Json = False
) -> None:
    """Remove an endpoint's limits, at once, and end a refusal of its requests."""
    wiring.limits(fleet).remove(endpoint)
    answer({"fleet": fleet, "removed": endpoint}, "", json=json)
