"""`ctl doctor`: what this host can do."""

from __future__ import annotations

from dataclasses import asdict

from rich.table import Table

from controlplane.cli import options, wiring
from controlplane.cli.output import print_json
from controlplane.files.fleets import fleets, state_root
from controlplane.report.tables.plan_table import show
from controlplane.runtime.jobs.doctor import examine


def doctor(json: options.Json = False) -> None:
    """Check this host for GPUs, Triton, HAProxy, Docker and quotas; say how to get what is missing."""
    found = examine(wiring.every_launcher(), fleets(state_root()))
    if json:
        print_json({"capabilities": [asdict(c) for c in found]})
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for capability in found:
        mark = "yes" if capability.available else "no"
        remedy = "" if capability.available or not capability.remedy else f" -> {capability.remedy}"
        table.add_row(mark, capability.name, f"{capability.detail}{remedy}")
    show(table)
