"""Elastic partitioning as in the authors' code, which places all gpulets that a model wants at once.

A whole GPU comes before any other piece where GPUs are cut: it is cut to the wanted size, and its rest is
left for others. With interference a plan that serves 85 % of each rate is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.papers.gpulet import rest
from controlplane.papers.gpulet.gpulets import Cluster, Gpu, Gpulet, Resident
from controlplane.papers.gpulet.rest import Task, refit_residue, refit_saturated, suffers
from controlplane.papers.gpulet.sizing import UNSERVED_RPS, Demand, Sizing, WantedGpulet

ACCEPTED = 0.85
"""The part of a rate that is enough once neighbours count."""


def partition(demands: Sequence[Demand], cluster: Cluster, sizing: Sizing) -> str | None:
    """Place all demands, the one with the least rate x SLO first; the reason where one has no place."""
    again = list(demands)
    tried: set[int] = set()
    while again:
        for demand in sorted(again, key=lambda d: (d.rate * d.slo_ms, -d.key)):
            if not _add(Task(demand, demand.rate), cluster, sizing):
                return f"{demand.rate}/s of model {demand.model} find no gpulet"
        if not cluster.interference:
            return None
        again = [d for d in again if cluster.served(d) < ACCEPTED * d.rate - 1e-9]
        if any(d.key in tried for d in again):
            return "neighbours take too much of the throughput"
        tried.update(d.key for d in again)
    return None


def _add(task: Task, cluster: Cluster, sizing: Sizing) -> bool:
    """Place one demand: best fit, then what is empty, then one gpulet for its residues, then turns."""
    joined = [piece for _, piece in cluster.pieces() if piece.takes(task.demand)]
    if not joined:
        wanted = sizing.wanted(task.demand, task.rate)
        if wanted is not None:
            wanted.sort(key=lambda want: -want.percent)
            fits = _all_fit(task, wanted, cluster, sizing)
            if fits and _allocate(task, wanted, cluster, sizing):
                return True
    else:
        _leave(task, joined, cluster)
    empty = [piece for _, piece in cluster.pieces() if not piece.residents]
    rest.fill(task, empty, cluster, sizing)
    if rest.join_residues(task, cluster, sizing):
        return True
    return sizing.scheme.turns and rest.take_turns(task, cluster, sizing, joined)


def _leave(task: Task, joined: Sequence[Gpulet], cluster: Cluster) -> None:
    """Take a demand out of the gpulets that did not carry it."""
    for piece in joined:
        piece.residents = [r for r in piece.residents if r.demand.key != task.demand.key]
        busy = sum(cluster.time_ms(r.demand, piece, r.batch) for r in piece.residents)
        piece.occupancy = busy / piece.duty_ms if piece.residents else 0.0


def _all_fit(task: Task, wanted: list[WantedGpulet], cluster: Cluster, sizing: Sizing) -> bool:
    """Whether every wanted gpulet finds a piece, before any is taken."""
    left: dict[int, int] = {}
    taken: list[Gpulet] = []
    for want in wanted:
        while True:
            piece = _best(task, want, cluster, sizing, taken)
            if piece is None:
                return False
            room = left.setdefault(id(piece), piece.percent)
            if room >= want.percent:
                break
            taken.append(piece)
        cut = sizing.scheme.cuts and room == 100
        left[id(piece)] = room - want.percent if cut else 0
        if left[id(piece)] == 0:
            taken.append(piece)
    return True


def _allocate(task: Task, wanted: list[WantedGpulet], cluster: Cluster, sizing: Sizing) -> bool:
    """Give each wanted gpulet its piece; False, with what was given standing, where one has none."""
    for want in wanted:
        piece = _best(task, want, cluster, sizing, [])
        if piece is None:
            return False
        gpu = cluster.gpu_of(piece)
        if piece.percent == 100 and want.percent < 100 and sizing.scheme.cuts:
            gpu.cut(piece, want.percent)
        elif piece.percent not in (100, want.percent):
            larger = _resized(task, want, piece, cluster, sizing)
            if larger is None:
                return False
            want = larger
        piece.residents = [Resident(task.demand, want.rate, want.batch, want.throughput)]
        piece.duty_ms, piece.occupancy = want.duty_ms, want.occupancy
        if cluster.interference and not _adjusted(task, gpu, cluster):
            return False
        task.rate = int(task.rate - piece.residents[0].throughput)
    if task.left > UNSERVED_RPS:
        return False
    task.rate = 0
    return True


def _adjusted(task: Task, gpu: Gpu, cluster: Cluster) -> bool:
    """Fit every gpulet of a GPU to its neighbours; what saturated ones lose is asked for once more."""
    for piece in gpu.pieces:
        if piece.saturated:
            lost = refit_saturated(piece, cluster)
            if lost is None:
                return False
            task.extra += lost
        elif piece.residents:
            refit_residue(piece, cluster)
    return True


def _best(
    task: Task, want: WantedGpulet, cluster: Cluster, sizing: Sizing, taken: list[Gpulet]
) -> Gpulet | None:
    """The piece for a wanted gpulet: a whole GPU to be cut, else the smallest that is large enough."""
    best, least = None, 200
    for gpu, piece in cluster.pieces():
        if piece.residents or piece.percent < want.percent or any(piece is t for t in taken):
            continue
        if not gpu.fits(piece, task.demand):
            continue
        if cluster.time_ms(task.demand, piece, want.batch) + want.duty_ms > task.demand.slo_ms:
            continue
        if suffers(piece, cluster):
            continue
        surplus = piece.percent - want.percent
        if piece.percent == 100 and sizing.scheme.partitions:
            best, least = piece, 0
        if least >= surplus:
            best, least = piece, surplus
    return best


def _resized(
    task: Task, want: WantedGpulet, piece: Gpulet, cluster: Cluster, sizing: Sizing
) -> WantedGpulet | None:
    """The same want in a larger piece: the batch that this one holds; None where it holds none."""
    time_of = cluster.time_of(task.demand, piece)
    rate = want.rate
    if want.occupancy == 1.0:
        batch = sizing.saturated_batch(task.demand, time_of)
    else:
        batch, rate = sizing.residue_batch(task.demand, rate, time_of)
    if not batch:
        return None
    taken = time_of(batch)
    duty = taken if want.occupancy == 1.0 else max(MILLIS_PER_SECOND * batch / rate, taken)
    return WantedGpulet(piece.percent, batch, rate, duty, taken / duty, MILLIS_PER_SECOND * batch / duty)
