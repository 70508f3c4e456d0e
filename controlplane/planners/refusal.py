"""Why nothing holds a workload, and what would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from controlplane.domain.plan import MOST_SERVERS, Infeasible, Rule
from controlplane.domain.workload import Workload
from controlplane.planners.igniter import nearest_rate, nearest_slo
from controlplane.planners.kinds import kinds_of
from controlplane.planners.menu import Alone
from controlplane.planners.protocol import PlanRequest

CARE = 0.98
"""A nearest SLO or rate is asked for with this much to spare: the exact queue must agree with the table."""


def refusal(
    workload: Workload, request: PlanRequest, alone: Mapping[str, Alone], quantile: float | None
) -> Infeasible:
    """The reason, with the nearest SLO and rate that one workload alone would be planned with."""
    types = [n for n, d in request.devices.items() if workload.model in d.profiles]
    if not types:
        return Infeasible(workload.name, f"{workload.model} has no profile on {', '.join(request.devices)}")
    devices = {n: request.devices[n] for n in types}

    def fits(w: Workload) -> bool:
        careful = replace(w, slo_ms=w.slo_ms * CARE)
        return bool(kinds_of([(careful,)], devices, alone, request.rule, quantile)[0])

    fastest = min(
        float(alone[n].execution[devices[n].latency.models.index(workload.model), 0, -1]) for n in types
    )
    asked = workload.slo_ms / (2.0 if request.rule is Rule.HALF_SLO else 1.0)
    what = "half its SLO is" if request.rule is Rule.HALF_SLO else "its SLO is"
    if fastest > asked:
        reason = (
            f"a single request takes {fastest:.4g} ms on a whole {' or '.join(types)} and {what} {asked:g} ms"
        )
    else:
        reason = (
            f"no pool of up to {MOST_SERVERS} servers on {' or '.join(types)} holds {workload.slo_ms:g} ms "
            f"at {workload.rate_rps:g}/s"
        )
    return Infeasible(workload.name, reason, nearest_slo(fits, workload), nearest_rate(fits, workload))
