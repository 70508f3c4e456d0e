"""The JSON of the verbs that converge a fleet to a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from controlplane.planning.replan.differences import TermChange
from controlplane.runtime.fleet.execute import describe
from controlplane.runtime.fleet.fleet import Outcome


def converged(fleet: str, outcome: Outcome) -> dict[str, Any]:
    """Return what a verb did: its steps, the changed terms of workloads, and the servers that run now."""
    return {
        "fleet": fleet,
        "steps": list(describe(outcome.actions)),
        "terms": terms(outcome.terms),
        "servers": [server.name for server in outcome.servers],
    }


def terms(changed: Sequence[TermChange]) -> list[dict[str, Any]]:
    """Return changes of SLOs and rates, which need no step."""
    return [asdict(one) for one in changed]
