"""The authors' code where no gpulet fits: a rest in empty pieces, residues joined, turns in a gpulet.

Before that, batches fitted to neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.papers.gpulet.gpulets import Cluster, Gpulet, Resident
from controlplane.papers.gpulet.sizing import UNSERVED_RPS, Demand, Sizing

MOST_RESIDENTS = 3
"""So many models take turns in a gpulet."""
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


def fill(task: Task, empty: list[Gpulet], cluster: Cluster, sizing: Sizing) -> None:
    """Serve what is left from empty pieces, largest first: saturated while it lasts, then residues."""
    task.rate, task.extra = task.left, 0
    given = sorted(empty, key=lambda piece: -piece.percent)
    saturating = True
    while task.rate > UNSERVED_RPS and given:
        piece = given[0]
        batch = _cut(task, piece, given, cluster, sizing)
        time_of, rate = cluster.time_of(task.demand, piece), None
        if saturating:
            if batch is None:
                batch = max(sizing.saturated_batch(task.demand, time_of), 1)
            if MILLIS_PER_SECOND * batch / time_of(batch) > task.rate:
                saturating = False
                continue
        else:
            batch, rate = sizing.residue_batch(task.demand, task.rate, time_of)
            if not batch:
                return
            task.rate = rate
        _place(task, piece, batch, rate, cluster)
        given.remove(piece)


def _cut(task: Task, piece: Gpulet, given: list[Gpulet], cluster: Cluster, sizing: Sizing) -> int | None:
    """Cut a whole GPU to the first gpulet wanted; return its batch, None where nothing is cut."""
    if piece.percent != 100 or not (sizing.scheme.partitions and sizing.scheme.cuts):
        return None
    wanted = sizing.wanted(task.demand, task.rate)
    if not wanted:
        return None
    if wanted[0].percent < 100:
        given.append(cluster.gpu_of(piece).cut(piece, wanted[0].percent))
        given[1:] = sorted(given[1:], key=lambda p: -p.percent)
    return wanted[0].batch


def _place(task: Task, piece: Gpulet, batch: int, rate: int | None, cluster: Cluster) -> None:
    """Put the task into a piece, saturated where `rate` is None, unless memory or a neighbour forbids it."""
    gpu = cluster.gpu_of(piece)
    if not gpu.fits(piece, task.demand):
        return
    taken = cluster.time_ms(task.demand, piece, batch)
    duty = taken if rate is None else MILLIS_PER_SECOND * batch / rate
    throughput = piece.serve(task.demand, task.rate, batch, taken, duty)
    if cluster.interference and not _neighbours_keep_up(piece, cluster):
        piece.clear()
        return
    task.rate = max(int(task.rate - throughput), 0)


def _neighbours_keep_up(piece: Gpulet, cluster: Cluster) -> bool:
    for other in cluster.gpu_of(piece).pieces:
        if other is piece or not other.residents:
            continue
        if other.occupancy >= 1.0 and len(other.residents) == 1:
            if refit_saturated(other, cluster) is None:
                return False
        elif not refit_residue(other, cluster):
            return False
    return True


def join_residues(task: Task, cluster: Cluster, sizing: Sizing) -> bool:
    """Put all residues of a task into one gpulet where one carries them; whether its whole rate is served."""
    rate, slowest, percent, residues = task.rate, float("inf"), 0, []
    for _, piece in cluster.pieces():
        resident = piece.takes(task.demand)
        if resident is None or len(piece.residents) > 1 or piece.occupancy >= 1.0:
            continue
        rate = int(rate + resident.throughput)
        residues.append(piece)
        throughput = sizing.saturated(task.demand, piece.percent)[1]
        if throughput < slowest:
            slowest, percent = throughput, piece.percent
    if not residues or (len(residues) == 1 and rate < UNSERVED_RPS) or slowest < rate:
        return task.rate <= UNSERVED_RPS
    for piece in residues:
        piece.clear()
    for gpu, piece in cluster.pieces():
        if piece.residents or piece.percent != percent or not gpu.fits(piece, task.demand):
            continue
        time_of = cluster.time_of(task.demand, piece)
        batch, rate = sizing.residue_batch(task.demand, rate, time_of)
        if not batch:
            continue
        duty = MILLIS_PER_SECOND * batch / rate
        served = int(MILLIS_PER_SECOND * batch / duty)
        throughput = piece.serve(task.demand, served, batch, time_of(batch), duty)
        task.rate = max(int(rate - throughput), 0)
        break
    if task.rate > UNSERVED_RPS:
        return False
    for gpu in cluster.gpus:
        gpu.join_empty(sizing.scheme.cuts)
    return True


def take_turns(task: Task, cluster: Cluster, sizing: Sizing, only: list[Gpulet]) -> bool:
    """Serve what is left in turns with the residents of other gpulets; whether all of it is served.

    `only`: these gpulets, or all that are not saturated where it is empty.
    """
    candidates = only or [
        piece
        for _, piece in cluster.pieces()
        if piece.occupancy < 1.0 and len(piece.residents) < MOST_RESIDENTS
    ]
    candidates = [piece for piece in candidates if cluster.gpu_of(piece).fits(piece, task.demand)]
    candidates.sort(key=lambda piece: -piece.occupancy)
    while task.left > UNSERVED_RPS:
        if not any(_joined(task, piece, cluster) for piece in candidates):
            return False
    return True


def _joined(task: Task, piece: Gpulet, cluster: Cluster) -> bool:
    """Let the task run once in each cycle of a gpulet, where everyone's SLO allows it."""
    if piece.takes(task.demand) or piece.occupancy >= 1.0 or task.rate <= 0:
        return False
    largest = len(cluster.times.host[0])
    first = min(int(piece.duty_ms * task.rate / MILLIS_PER_SECOND), largest)
    for batch in range(first, 0, -1):
        duty = int(batch * MILLIS_PER_SECOND / task.rate)
        taken = cluster.time_ms(task.demand, piece, batch)
        alone = duty > 0 and duty + taken < task.demand.slo_ms
        if alone and taken / duty < 1.0 - piece.occupancy:
            break
    else:
        return False
    sizes = [min(max(int(duty * r.rate / MILLIS_PER_SECOND), 1), largest) for r in piece.residents]
    others = zip(piece.residents, sizes, strict=True)
    busy = taken + sum(cluster.time_ms(r.demand, piece, size) for r, size in others)
    strictest = min(task.demand.slo_ms, *(r.demand.slo_ms for r in piece.residents))
    if duty > piece.duty_ms or busy > duty or busy + duty > strictest:
        return False
    for resident, size in zip(piece.residents, sizes, strict=True):
        resident.batch, resident.throughput = size, MILLIS_PER_SECOND * size / duty
    throughput = MILLIS_PER_SECOND * batch / duty
    piece.residents.append(Resident(task.demand, task.rate, batch, throughput))
    busy = sum(cluster.time_ms(r.demand, piece, r.batch) for r in piece.residents)
    piece.duty_ms, piece.occupancy = float(duty), busy / duty
    task.rate = max(int(task.rate - throughput), 0)
    return True
