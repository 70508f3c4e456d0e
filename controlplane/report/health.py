"""What is wrong with a running fleet, for scripts that wait for it or check it. Pure."""

from __future__ import annotations

from controlplane.domain.fleet import ServerState
from controlplane.report.tables.status_table import Status, is_late
from controlplane.report.words import number


def problems(status: Status) -> tuple[str, ...]:
    """Return one line for each problem; empty for a fleet that serves and keeps its promises.

    A workload without requests in the window of the figures has no P99, which is no problem.
    """
    if status.trouble is not None:
        return (f"the servers are unknown: {status.trouble}",)
    served = {
        endpoint
        for row in status.servers
        if row.routed and row.state == ServerState.RUNNING
        for endpoint in row.endpoints
    }
    found = [
        f"workload {w.workload}: no running server answers {w.endpoint}"
        for w in status.workloads
        if w.endpoint not in served
    ]
    found += [
        f"workload {w.workload}: P99 {number(w.p99_ms)} ms is above its SLO of {number(w.slo_ms)} ms"
        for w in status.workloads
        if is_late(w)
    ]
    found += [
        f"partition {row.partition}: {row.failed_starts} starts failed, and none is tried again yet"
        for row in status.guard
        if row.breaker_open
    ]
    if status.gateway_down:
        found.append(status.gateway_down)
    if status.controller is None:
        found.append("no controller runs: nothing is redirected or restarted")
    return tuple(found)
