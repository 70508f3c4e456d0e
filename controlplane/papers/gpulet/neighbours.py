"""Gpulets fitted to their neighbours: smaller batches where a neighbour slows them."""

from __future__ import annotations

from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.papers.gpulet.gpulets import Cluster, Demand, Gpulet
from controlplane.papers.gpulet.scheme import Reading
from controlplane.papers.gpulet.sizing import Wanted


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


def refit_residue(piece: Gpulet, cluster: Cluster, reading: Reading) -> bool:
    """Reduce batches and the duty cycle until every resident keeps its SLO; False where none do."""
    times = [cluster.time_ms(r.demand, piece, r.batch) for r in piece.residents]
    whole = sum(times)
    if all(whole + piece.duty_ms <= r.demand.slo_ms * reading.slack for r in piece.residents):
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


def suffers(demand: Demand, want: Wanted, piece: Gpulet, cluster: Cluster, reading: Reading) -> bool:
    """Whether a neighbour of `piece` would miss its SLO with this newcomer beside it.

    The authors' code asks for the neighbour's time on a GPU without the newcomer, so what it holds against
    the SLO is two duty cycles and the time to assemble a batch.
    """
    if piece.percent == 100:
        return False
    gpu = cluster.gpu_of(piece)
    newcomer = demand.model, piece.percent, want.batch
    for other in gpu.pieces:
        if other is piece:
            continue
        for r in other.residents:
            if reading.neighbour_cycles:
                host = cluster.times.host[r.demand.model][r.batch - 1]
                if host + 2.0 * other.duty_ms > r.demand.slo_ms:
                    return True
            elif cluster.interference:
                own = r.demand.model, other.percent, r.batch
                taken = cluster.times.beside(own, [newcomer])
                cycle = taken if other.saturated else other.duty_ms
                if taken + cycle > r.demand.slo_ms:
                    return True
    return False
