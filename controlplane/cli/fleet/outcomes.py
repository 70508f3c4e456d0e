"""What a change of a fleet does to its access, and what it did, by this host or a cluster's controllers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from controlplane.cli.output import answer, print_json, say
from controlplane.domain.errors import InputError
from controlplane.domain.observation import FleetReport
from controlplane.domain.plan import Plan
from controlplane.domain.serving import Difference
from controlplane.files.plans import fleet_manifest
from controlplane.gateway.security.certificate import is_loopback
from controlplane.runtime.fleet.execute import describe
from controlplane.runtime.fleet.fleet import Outcome


def lines(changed: Iterable[Difference]) -> list[str]:
    """Return a line for each change."""
    return [f"serve: {one.path} {one.before} -> {one.after}" for one in changed]


def say_or_refuse(changed: Iterable[Difference], *, accepted: bool) -> None:
    """Say each change, where no person was asked.

    Raises InputError, unless it is `accepted`, where more clients could connect, or calls would no longer be
    written down.
    """
    changed = tuple(changed)
    looser = [one for one in changed if _is_looser(one)]
    if looser and not accepted:
        raise InputError(f"is needed for looser access ({'; '.join(lines(looser))})", field="--yes")
    for line in lines(changed):
        say(line)


def _is_looser(one: Difference) -> bool:
    match one.path:
        case "tls.cert" | "tls.client_ca":
            return one.after is None
        case "access.tokens" | "access.audit":
            return not one.after
        case "access.plain_text":
            return bool(one.after)
        case "listen.host":
            return not is_loopback(str(one.after))
        case _:
            return False


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
