"""`ctl list`: the fleets of this user on this host."""

from __future__ import annotations

from datetime import datetime

from controlplane.cli import options
from controlplane.cli.output import answer
from controlplane.files.fleets import FleetFiles, fleets, state_root


def list(json: options.Json = False) -> None:
    """List the fleets that were applied: launcher, gateway's ports, and when a plan was last applied."""
    rows = [_row(FleetFiles(state_root(), name)) for name in fleets(state_root())]
    lines = [
        f"{row['fleet']}  {row['launcher']}  {row['host']} http {row['http']} grpc {row['grpc']} metrics "
        f"{row['metrics']}  applied {_spoken(row['applied_s'])}"
        for row in rows
    ]
    answer({"fleets": rows}, "\n".join(lines) or "no fleet was applied: `ctl apply` makes one", json=json)


def _row(files: FleetFiles) -> dict[str, object]:
    settings = files.settings()
    assert settings is not None, "`fleets` names those that have settings"
    listening = settings.endpoints
    return {
        "fleet": files.fleet,
        "launcher": settings.launcher,
        "host": listening.host,
        "http": listening.http_port,
        "grpc": listening.grpc_port,
        "metrics": listening.metrics_port,
        "applied_s": files.planned_s(),
    }


def _spoken(at_s: object) -> str:
    return f"{datetime.fromtimestamp(at_s):%Y-%m-%d %H:%M:%S}" if isinstance(at_s, float) else "never"
