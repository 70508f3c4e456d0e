"""The warning about an endpoint that ends."""

from __future__ import annotations

from controlplane.planning.replan.differences import Ending


def ending_line(ending: Ending) -> str:
    """Return the warning: which endpoint ends, the workloads' new endpoints, and how to keep the old one."""
    if not ending.heirs:
        return f"endpoint {ending.endpoint} ends: workload {ending.workload} is no longer served"
    renamed = ", ".join(f"workload {name} gets endpoint {endpoint}" for name, endpoint in ending.heirs)
    return (
        f"warning: endpoint {ending.endpoint} ends, its clients will get 404: {renamed}; to keep it, write "
        f"`endpoint: {ending.endpoint}` in the spec's line of {ending.heirs[0][0]}, then plan again"
    )
