"""`ctl apply` to a fleet that controllers in a cluster keep: write its Fleet object, await their report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controlplane.cli.output import print_json
from controlplane.domain.fleet import Cluster
from controlplane.domain.plan import Plan
from controlplane.domain.wanted import FleetReport
from controlplane.files.fleets import FleetSettings
from controlplane.files.plans import fleet_manifest
from controlplane.runtime.fleet.execute import describe
from controlplane.runtime.fleet.fleet import Outcome
from controlplane.runtime.fleet.in_cluster import FleetInCluster


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


def commit(
    kept: FleetInCluster,
    plan: Plan,
    settings: FleetSettings,
    *,
    allow_violations: bool,
    rename_endpoints: bool,
    json: bool,
) -> None:
    """Apply a plan and print what the controllers report."""
    report = kept.apply(plan, settings, allow_violations=allow_violations, rename_endpoints=rename_endpoints)
    show_report(kept.files.fleet, report, json=json)


def show_report(fleet: str, report: FleetReport, *, json: bool) -> None:
    """Print the controllers' report."""
    if json:
        told = {"generation": report.generation, "plan": report.plan, "partitions": report.partitions}
        print_json({"fleet": fleet, **told, "message": report.message})
        return
    print(f"fleet {fleet}: generation {report.generation} is applied: {report.message}")


def converged(fleet: str, outcome: Outcome) -> dict[str, Any]:
    """Return what a verb did: its steps, the changed terms of workloads, and the servers that run now."""
    return {
        "fleet": fleet,
        "steps": list(describe(outcome.actions)),
        "terms": outcome.terms,
        "servers": [server.name for server in outcome.servers],
    }
