"""`ctl dashboard` and `ctl report`: a fleet as a page, live or as a file."""

from __future__ import annotations

import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import options
from controlplane.cli.output import print_json, print_json_line, say

_DAY_S = 86_400.0


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

    From another host: `ssh -L 8004:127.0.0.1:8004 HOST`, or --host; where the fleet requires tokens, the page
    asks for an operator's (in a browser as the password).
    """
    from controlplane.cli import wiring
    from controlplane.files.gateway import accepting
    from controlplane.runtime.dashboard import Listening, live_document, page_access, serve

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


def report(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="The page (.html).", callback=options.writable("--output", ".html")
        ),
    ] = Path("fleet.html"),
    since: Annotated[
        float, typer.Option(help="Include the record and events of the last SINCE seconds.", min=0.0)
    ] = _DAY_S,
    json: options.Json = False,
) -> None:
    """Write a page of a fleet: its GPUs, P99s against SLOs, its record over time, and its events."""
    from controlplane.cli import wiring
    from controlplane.files.writing import write_text
    from controlplane.runtime.dashboard import fleet_report

    look = wiring.status_source(fleet)
    text = fleet_report(wiring.fleet_files(fleet), look, time.time() - since)
    write_text(output, text)
    if json:
        print_json({"fleet": fleet, "file": str(output)})
    else:
        say(f"{output}: written")
