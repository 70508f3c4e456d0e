"""Why a workload is infeasible, and the nearest SLO and rate that are not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from controlplane.domain.device import noun
from controlplane.domain.plan import MOST_SERVERS, Infeasible, PlannedGpu, Rule
from controlplane.domain.units import spoken
from controlplane.domain.workload import ShadowWish, Workload
from controlplane.planning.capacity.gpu_types import GpuType
from controlplane.planning.capacity.options import ServingOption, serving_options
from controlplane.planning.judge.placements import (
    gpu_of,
    memory_with_shadow,
    most_clients,
    partition_of,
    tells_apart,
    too_large,
)
from controlplane.planning.judge.shadows import taken_with_shadows
from controlplane.planning.protocol import Device, PlanRequest

Fits = Callable[[Workload], bool]
_LONGEST_SLO_MS = 60_000.0
_ROUNDING = 1e-9
_CARE = 0.98
"""A nearest SLO or rate is asked for with this much to spare: the exact queue must agree with the table."""
_TRIES = 6
"""Nearest values that are planned, each with more to spare."""


def free_percents(gpus: Sequence[PlannedGpu], kind: str, count: int) -> list[float]:
    """What each of `count` devices of this type has left beside the planned partitions."""
    used = [gpu.percent for gpu in gpus if gpu.type == kind]
    return [100.0 - percent for percent in (*used, *[0.0] * (count - len(used)))]


def is_fragmented(free: Sequence[float], share_percent: float, servers: int = 1) -> bool:
    """Whether the free shares add up to `servers` shares of this size, and single devices hold fewer."""
    pieces = sum(int(percent / share_percent + _ROUNDING) for percent in free)
    return sum(free) >= servers * share_percent - _ROUNDING and pieces < servers


def exhausted(
    gpus: Sequence[PlannedGpu],
    share_percent: float,
    workload: Workload,
    wishes: Mapping[str, ShadowWish],
    device: Device,
) -> str:
    """The resource that runs out on every device of a type with so much share left; empty where none does.

    `gpus` are those of a plan without the workload; further devices of the type are empty.
    """
    name, needed_mb = device.pool.device.name, memory_with_shadow(workload, device, 1)
    planned = [gpu for gpu in gpus if gpu.type == name]
    roomy = [g for g in planned if g.percent + share_percent <= 100.0 + _ROUNDING]
    if not roomy or len(planned) < (device.pool.count or math.inf):
        return ""
    taken = [taken_with_shadows(g, wishes, device) for g in roomy]
    left_mb = (device.pool.device.memory_mb or math.inf) - min(mb for _, mb in taken)
    if needed_mb > left_mb:
        return (
            f"memory runs out: it takes {needed_mb:g} MB with what must stand by, and no {name} with "
            f"{spoken(share_percent)} % left has more than {left_mb:g} MB"
        )
    alone = gpu_of(0, device, [partition_of(workload.name, [workload], share_percent, 1, None)])
    needed, _ = taken_with_shadows(alone, wishes, device)
    if min(clients for clients, _ in taken) + needed > most_clients(device):
        return f"clients run out: a {name} takes {most_clients(device):g} of MPS, shadows included"
    return ""


def fragmented(kind: str, free: Sequence[float], takes: str) -> str:
    """The reason why a workload that takes `takes` finds no room."""
    return (
        f"the free {kind} shares are fragmented: they add up to {spoken(sum(free))} %, at most "
        f"{spoken(max(free))} % on one {noun([kind])}, and it takes about {takes}"
    )


def nearest_slo(fits: Fits, workload: Workload) -> float | None:
    """The smallest SLO, to 0.1 ms, found to fit by bisection upwards; None where not even a minute fits."""
    low, high = workload.slo_ms, workload.slo_ms
    while not fits(replace(workload, slo_ms=high)):
        low, high = high, high * 2.0
        if high > _LONGEST_SLO_MS:
            return None
    while high - low > max(0.05, 1e-4 * high):
        middle = (low + high) / 2.0
        low, high = (low, middle) if fits(replace(workload, slo_ms=middle)) else (middle, high)
    rounded = math.ceil(high * 10.0) / 10.0
    return rounded if fits(replace(workload, slo_ms=rounded)) else high


def nearest_rate(fits: Fits, workload: Workload) -> float | None:
    """The largest rate found to fit by bisection downwards; None where not even a thousandth does."""
    low = high = workload.rate_rps
    while not fits(replace(workload, rate_rps=low)):
        high, low = low, low / 2.0
        if low < workload.rate_rps / 1000.0:
            return None
    while high - low > 1e-4 * workload.rate_rps:
        middle = (low + high) / 2.0
        low, high = (middle, high) if fits(replace(workload, rate_rps=middle)) else (low, middle)
    rounded = float(math.floor(low))
    return rounded if rounded > 0 and fits(replace(workload, rate_rps=rounded)) else low


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why `gpus`, a plan for `request`, does not serve a workload.

    `holds`: whether a workload is served where it is planned alone.
    """

    request: PlanRequest
    gpu_types: Mapping[str, GpuType]
    gpus: Sequence[PlannedGpu]
    holds: Callable[[Workload], bool]

    def no_room(self, workload: Workload) -> Infeasible:
        """For a workload that the fleet could hold without the others."""
        types, options = self._types(workload), self._options(workload)
        counts = {n: c for n in types if (c := self.request.devices[n].pool.count) is not None}
        free = {name: free_percents(self.gpus, name, count) for name, count in counts.items()}
        wishes = {w.name: w.shadow for w in self.request.workloads}
        for option in options:
            device = self.request.devices[option.gpu_type]
            if reason := exhausted(self.gpus, option.expected_percent, workload, wishes, device):
                return Infeasible(workload.name, reason)
            shares = free.get(option.gpu_type)
            if shares and is_fragmented(shares, option.expected_percent, option.item.servers):
                return Infeasible(workload.name, fragmented(option.gpu_type, shares, option.takes))
        takes = next(filter(self._has_room, options), options[0]).takes
        left = " and ".join(f"{spoken(sum(shares))} % of {len(shares)} {n}" for n, shares in free.items())
        reason = f"all {noun(types)}s are taken: the others leave {left}, and it takes about {takes}"
        return Infeasible(workload.name, reason)

    def refusal(self, workload: Workload) -> Infeasible:
        """For a workload that it could not, with the nearest SLO and rate that would be served."""
        request, types, options = self.request, self._types(workload), self._options(workload)
        if not types:
            reason = f"{workload.model} has no profile on {', '.join(request.devices)}"
            return Infeasible(workload.name, reason)
        no_memory = [m for n in types if (m := too_large(workload, request.devices[n])) is not None]
        if len(no_memory) == len(types):
            return Infeasible(workload.name, "; ".join(no_memory))
        fastest, on = min(
            (float(self.gpu_types[n].alone.execution[self.gpu_types[n].number_of(workload.model), 0, -1]), n)
            for n in types
        )
        half = request.rule is Rule.HALF_SLO
        asked = workload.slo_ms / (2.0 if half else 1.0)
        if fastest > asked:
            reason = (
                f"a single request takes {'at best ' if len(types) > 1 else ''}{fastest:.4g} ms "
                f"on a whole {on} and {'half its' if half else 'its'} SLO is {asked:g} ms"
            )
        elif options and not any(map(self._has_room, options)):
            takes, there_are = options[0].takes, self._fleet(types)
            reason = f"the {noun(types)}s do not suffice: it takes about {takes} and there are {there_are}"
        else:
            reason = (
                f"no pool of up to {MOST_SERVERS} servers on {self._fleet(types)} "
                f"holds {workload.slo_ms:g} ms at {spoken(workload.rate_rps)} requests/s"
            )
        return Infeasible(workload.name, reason, *self._nearest(workload))

    def _nearest(self, workload: Workload) -> tuple[float | None, float | None]:
        """SLO and rate; None where none is found that differs from what was asked and is served."""

        def fits(w: Workload, care: float) -> bool:
            return any(map(self._has_room, self._options(replace(w, slo_ms=w.slo_ms * care))))

        care = _CARE
        # Where the exact queue refuses what the table allows, the table is asked for more.
        while fits(workload, care):
            care *= _CARE
        slo = rate = None
        for _ in range(_TRIES):
            fits_now = partial(fits, care=care)
            if slo is None and (found := nearest_slo(fits_now, workload)) is not None:
                slo = found if self.holds(replace(workload, slo_ms=found)) else None
            if rate is None and (found := nearest_rate(fits_now, workload)) is not None:
                differs = round(found) != round(workload.rate_rps)
                rate = found if differs and self.holds(replace(workload, rate_rps=found)) else None
            if slo is not None and rate is not None:
                break
            care *= _CARE
        return slo, rate

    def _types(self, workload: Workload) -> list[str]:
        return [n for n, d in self.request.devices.items() if workload.model in d.profiles]

    def _options(self, workload: Workload) -> list[ServingOption]:
        gpu_types = {n: self.gpu_types[n] for n in self._types(workload)}
        return serving_options([(workload,)], gpu_types)[0]

    def _has_room(self, option: ServingOption) -> bool:
        """Whether there are GPUs enough for it alone."""
        count = self.request.devices[option.gpu_type].pool.count
        return count is None or option.gpus <= count

    def _fleet(self, types: Sequence[str]) -> str:
        counts = [(n, self.request.devices[n].pool.count) for n in types]
        return " or ".join(n if count is None else f"{count} {n}" for n, count in counts)


def with_model_limit(lost: Sequence[Infeasible], gpus: Sequence[PlannedGpu]) -> tuple[Infeasible, ...]:
    """Return what is not served; where a GPU has room for no other model in turns, the reason says so."""
    for gpu in gpus:
        counts = [len(partition.models) for partition in gpu.partitions]
        one_more = ([*counts[:i], count + 1, *counts[i + 1 :]] for i, count in enumerate(counts))
        if counts and not any(map(tells_apart, one_more)):
            full = (
                f"; {gpu.id} has {sum(counts)} models in turns, as many as a plan distinguishes on one "
                f"{noun([gpu.type])} whatever their rates: add a {noun([gpu.type])}"
            )
            return tuple(replace(one, reason=one.reason + full) for one in lost)
    return tuple(lost)
