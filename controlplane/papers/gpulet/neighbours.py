"""Batches fitted to neighbours, as in the authors' code."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.papers.gpulet.gpulets import Cluster, Gpulet
from controlplane.papers.gpulet.sizing import Demand

SLACK = 1.05
"""A residue may exceed its SLO by this factor."""


@dataclass(slots=True)
class Task:
    """A demand while it is being placed: its rate that is left, and what neighbours took of it as `extra`."""

    demand: Demand
    rate: int
    extra: int = 0

    @property
    def left(self) -> int:
        """The rate without a place."""
        return self.rate + self.extra


def refit_saturated(piece: Gpulet, cluster: Cluster) -> int | None:
    """Reduce the batch until two in a row keep the SLO; return the throughput lost, None where none does."""
    (resident,) = piece.residents
    before, batch = resident.throughput, resident.batch
    taken = cluster.time_ms(resident.demand, piece, batch)
    while 2.0 * taken > resident.demand.slo_ms:
        batch -= 1
        if batch == 0:
            return None
        taken = cluster.time_ms(resident.demand, piece, batch)
    resident.batch, piece.duty_ms = batch, taken
    resident.throughput = MILLIS_PER_SECOND * batch / taken
    return max(int(before - resident.throughput), 0)


def refit_residue(piece: Gpulet, cluster: Cluster) -> bool:
    """Reduce batches and the duty cycle until every resident keeps its SLO; False where none do."""
    times = [cluster.time_ms(r.demand, piece, r.batch) for r in piece.residents]
    whole = sum(times)
    if all(whole + piece.duty_ms <= r.demand.slo_ms * SLACK for r in piece.residents):
        return True
    shortest, batches = piece.duty_ms, []
    for resident, own in zip(piece.residents, times, strict=True):
        batch, duty, taken = resident.batch, piece.duty_ms, own
        while resident.demand.slo_ms < whole - own + taken + duty:
            batch -= 1
            if batch == 0:
                return False
            taken = cluster.time_ms(resident.demand, piece, batch)
            duty *= batch / resident.batch
        shortest = min(shortest, duty)
        batches.append(batch)
    for resident, batch in zip(piece.residents, batches, strict=True):
        resident.batch = batch
        resident.throughput = MILLIS_PER_SECOND * batch / shortest
    busy = sum(cluster.time_ms(r.demand, piece, r.batch) for r in piece.residents)
    piece.duty_ms, piece.occupancy = shortest, busy / shortest
    return True


def suffers(piece: Gpulet, cluster: Cluster) -> bool:
    """Whether two duty cycles of a neighbour of `piece`, and what its host takes, exceed its SLO.

    The code asks for the neighbour's time on a GPU without the newcomer, so this is all that is left of it.
    """
    if piece.percent == 100:
        return False
    return any(
        cluster.times.host[r.demand.model][r.batch - 1] + 2.0 * other.duty_ms > r.demand.slo_ms
        for other in cluster.gpu_of(piece).pieces
        if other is not piece
        for r in other.residents
    )
