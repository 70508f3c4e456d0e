"""The HTML reports of `ctl plan` and `ctl simulate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from controlplane.domain.plan import Plan
from controlplane.files.documents import plain
from controlplane.planning.explain.explain import explain_queues
from controlplane.report.page.document import plan_document
from controlplane.report.page.html import page
from controlplane.runtime.jobs.plan import Planned, devices_of
from controlplane.runtime.jobs.what_if import Point
from controlplane.simulate.result import SimulationResult


def plan_report(planned: Planned, other_terms: Mapping[str, Sequence[Point]] | None = None) -> str:
    """Return the report of a plan, with the costs under other SLOs and rates where they are given."""
    document = plan_document(planned.plan, explain_queues(planned.plan, planned.request.devices))
    if other_terms is not None:
        document["what_if"] = plain(other_terms)
    return page("Plan", document)


def simulation_report(plan: Plan, result: SimulationResult, profiles: Path) -> str:
    """Return the report of a simulated plan. Raises InputError where a profile is missing."""
    reasons = explain_queues(plan, devices_of(plan, profiles))
    return page("Simulated plan", plan_document(plan, reasons, result))
