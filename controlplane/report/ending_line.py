"""An endpoint that ends, in one line."""

from __future__ import annotations

from controlplane.planners.replan.differences import Ending


def ending_line(ending: Ending) -> str:
    """Which endpoint, and who is called how from now on; where something stays, how to keep it."""
    if not ending.heirs:
        return f"endpoint {ending.endpoint} ends: workload {ending.workload} is served no more"
    called = ", ".join(f"workload {name} is called {endpoint}" for name, endpoint in ending.heirs)
    return (
        f"warning: endpoint {ending.endpoint} ends, its clients will get 404: {called} from now on; to keep "
        f"it, write `endpoint: {ending.endpoint}` in the spec's line of {ending.heirs[0][0]}, then plan again"
    )
