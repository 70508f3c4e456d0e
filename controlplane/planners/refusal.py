"""Why nothing holds a workload, and what would."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.domain.device import noun
from controlplane.domain.plan import MOST_SERVERS, Infeasible, PlannedGpu, Rule
from controlplane.domain.units import spoken
from controlplane.domain.workload import Workload
from controlplane.planners.finish import too_large
from controlplane.planners.fragments import fragmented, free_percents, is_fragmented
from controlplane.planners.igniter import nearest_rate, nearest_slo
from controlplane.planners.kinds import Kind, kinds_of
from controlplane.planners.menu import Alone
from controlplane.planners.protocol import PlanRequest

CARE = 0.98
"""A nearest SLO or rate is asked for with this much to spare: the exact queue must agree with the table."""


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why `gpus`, a plan for `request`, does not serve a workload; `holds`: whether it is planned alone."""

    request: PlanRequest
    alone: Mapping[str, Alone]
    quantile: float | None
    gpus: Sequence[PlannedGpu]
    holds: Callable[[Workload], bool]

    def no_room(self, workload: Workload) -> Infeasible:
        """For one that the fleet could hold."""
        types, ways = self._types(workload), self._ways(workload)
        counts = {n: c for n in types if (c := self.request.devices[n].pool.count) is not None}
        free = {name: free_percents(self.gpus, name, count) for name, count in counts.items()}
        for way in ways:
            if way.device in free and is_fragmented(free[way.device], way.expected, way.item.servers):
                return Infeasible(workload.name, fragmented(way.device, free[way.device], way.takes))
        takes = next(filter(self._room, ways), ways[0]).takes
        left = " and ".join(f"{spoken(sum(shares))} % of {len(shares)} {n}" for n, shares in free.items())
        reason = f"all {noun(types)}s are taken: the others leave {left}, and it takes about {takes}"
        return Infeasible(workload.name, reason)

    def refusal(self, workload: Workload) -> Infeasible:
        """For one that it could not, with the nearest SLO and rate that would be planned alone."""
        request, types, ways = self.request, self._types(workload), self._ways(workload)
        if not types:
            return Infeasible(
                workload.name, f"{workload.model} has no profile on {', '.join(request.devices)}"
            )
        no_memory = [m for n in types if (m := too_large(workload, request.devices[n])) is not None]
        if len(no_memory) == len(types):
            return Infeasible(workload.name, "; ".join(no_memory))
        fastest, on = min(
            (float(self.alone[n].execution[device.latency.models.index(workload.model), 0, -1]), n)
            for n, device in request.devices.items()
            if n in types
        )
        asked = workload.slo_ms / (2.0 if request.rule is Rule.HALF_SLO else 1.0)
        what = "half its SLO is" if request.rule is Rule.HALF_SLO else "its SLO is"
        if fastest > asked:
            reason = (
                f"a single request takes {'at best ' if len(types) > 1 else ''}{fastest:.4g} ms "
                f"on a whole {on} and {what} {asked:g} ms"
            )
        elif ways and not any(map(self._room, ways)):
            takes, there_are = ways[0].takes, self._fleet(types)
            reason = f"the {noun(types)}s do not suffice: it takes about {takes} and there are {there_are}"
        else:
            reason = (
                f"no pool of up to {MOST_SERVERS} servers on {self._fleet(types)} "
                f"holds {workload.slo_ms:g} ms at {spoken(workload.rate_rps)} requests/s"
            )
        return Infeasible(workload.name, reason, *self._nearest(workload))

    def _nearest(self, workload: Workload) -> tuple[float | None, float | None]:
        """SLO and rate; None where none is found that differs from what was asked and is held."""
        care = CARE

        def fits(w: Workload) -> bool:
            return any(map(self._room, self._ways(replace(w, slo_ms=w.slo_ms * care))))

        # Where the exact queue refuses what the table allows, the table is asked for more.
        while fits(workload):
            care *= CARE
        slo, rate = nearest_slo(fits, workload), nearest_rate(fits, workload)
        if slo is not None and not self.holds(replace(workload, slo_ms=slo)):
            slo = None
        if rate is not None and (
            round(rate) == round(workload.rate_rps) or not self.holds(replace(workload, rate_rps=rate))
        ):
            rate = None
        return slo, rate

    def _types(self, workload: Workload) -> list[str]:
        return [n for n, d in self.request.devices.items() if workload.model in d.profiles]

    def _ways(self, workload: Workload) -> list[Kind]:
        devices = {n: self.request.devices[n] for n in self._types(workload)}
        return kinds_of([(workload,)], devices, self.alone, self.request.rule, self.quantile)[0]

    def _room(self, way: Kind) -> bool:
        """Whether there are GPUs enough for it alone."""
        count = self.request.devices[way.device].pool.count
        return count is None or way.gpus <= count

    def _fleet(self, types: Sequence[str]) -> str:
        counts = [(n, self.request.devices[n].pool.count) for n in types]
        return " or ".join(n if count is None else f"{count} {n}" for n, count in counts)
