"""`ctl dashboard`: a fleet as a live page."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from controlplane.cli import options, wiring
from controlplane.cli.output import print_json_line, say


def dashboard(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    host: Annotated[
        str, typer.Option(help="The page's address. Beyond loopback it needs the fleet's certificate.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The page's port.", min=1, max=65535)] = 8004,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
    json: options.Json = False,
) -> None:
    """Serve a live page of a fleet, until interrupted.

    It only reads, and shows no secrets. From another host: `ssh -L 8004:127.0.0.1:8004 HOST`, or --host with
    the gateway's certificate; where the fleet requires tokens, the page asks for an operator's (in a browser
    as the password).
    """
    from controlplane.files.gateway import accepting
    from controlplane.runtime.dashboard.look import live_document
    from controlplane.runtime.dashboard.server import Listening, page_access, serve

    look = wiring.status_source(fleet)
    files = wiring.fleet_files(fleet)
    listening = Listening(host, port, page_access(files, host))

    def ready(address: str) -> None:
        if json:
            print_json_line({"fleet": fleet, "address": address})
        else:
            say(f"fleet {fleet}: {address}")
        if browser:
            webbrowser.open(address)

    accepting.run(serve(f"Fleet {fleet}", lambda: live_document(files, look), listening, ready))
