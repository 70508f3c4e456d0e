"""The Fleet object of a plan, for a cluster whose controllers keep the fleet."""

from __future__ import annotations

from typing import Any

from controlplane.domain.plan import Plan
from controlplane.files.plans import plan_document

API_VERSION = "trisect.dev/v1alpha1"


def fleet_manifest(fleet: str, plan: Plan, *, allow_violations: bool) -> dict[str, Any]:
    """Return the object that `ctl apply` writes and that a repository of manifests may hold."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Fleet",
        "metadata": {"name": fleet},
        "spec": {"plan": plan_document(plan), "allowViolations": allow_violations},
    }
