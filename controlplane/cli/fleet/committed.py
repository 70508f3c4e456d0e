"""`ctl apply` to a fleet that controllers in a cluster keep: write its Fleet object, await their report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controlplane.cli.output import answer, print_json
from controlplane.domain.fleet import Cluster
from controlplane.domain.plan import Plan
from controlplane.domain.wanted import FleetReport
from controlplane.files.fleets import FleetSettings
from controlplane.files.plans import fleet_manifest
from controlplane.runtime.fleet.execute import describe
from controlplane.runtime.fleet.fleet import Outcome


def settings_of(repository: Path, output: Path, place: Cluster) -> FleetSettings:
    """Return what this host records of the fleet; the devices are in its object."""
    where = Cluster(place.context, place.namespace, installed=True)
    return FleetSettings("kubernetes", str(repository.resolve()), str(output.resolve()), {}, cluster=where)


def show_manifest(fleet: str, plan: Plan, *, allow_violations: bool, json: bool) -> None:
    """Print the object of a plan."""
    manifest = fleet_manifest(fleet, plan, allow_violations=allow_violations)
    if json:
        print_json({"fleet": fleet, "manifest": manifest})
    else:
        import yaml

        print(yaml.safe_dump(manifest, sort_keys=False, width=110), end="")


def show_report(fleet: str, report: FleetReport, *, json: bool) -> None:
    """Print the controllers' report."""
    told = {"generation": report.generation, "plan": report.plan, "partitions": report.partitions}
    text = f"fleet {fleet}: generation {report.generation} is applied: {report.message}"
    answer({"fleet": fleet, **told, "message": report.message}, text, json=json)


def converged(fleet: str, outcome: Outcome) -> dict[str, Any]:
    """Return what a verb did: its steps, the changed terms of workloads, and the servers that run now."""
    return {
        "fleet": fleet,
        "steps": list(describe(outcome.actions)),
        "terms": outcome.terms,
        "servers": [server.name for server in outcome.servers],
    }
