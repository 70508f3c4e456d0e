"""Elastic partitioning (Alg 1) and its rehearsal on fixed partitionings, the authors' "ideal" scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from controlplane.papers.gpulet import best_fit, rest
from controlplane.papers.gpulet.gpulets import Cluster, Demand, Gpu, Gpulet
from controlplane.papers.gpulet.sizing import Sizing
from controlplane.papers.gpulet.task import Task

PARTITIONINGS = ((50, 50), (60, 40), (80, 20), (100,))
"""The ways in which the ideal scheduler cuts a GPU."""


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
        accepted = sizing.reading.accepted
        again = [d for d in again if cluster.served(d) < accepted * d.rate - 1e-9]
        if any(d.key in tried for d in again):
            return "neighbours take too much of the throughput"
        tried.update(d.key for d in again)
    return None


def on_fixed(
    demands: Sequence[Demand], gpus: Sequence[Gpu], sizing: Sizing, interference: bool
) -> Cluster | None:
    """The first of all combinations of `PARTITIONINGS` on which the demands have a place."""
    for cuts in product(PARTITIONINGS, repeat=len(gpus)):
        cut = [
            Gpu(gpu.memory_mb, gpu.process_mb, [Gpulet(percent) for percent in percents])
            for gpu, percents in zip(gpus, cuts, strict=True)
        ]
        cluster = Cluster(cut, sizing.times, interference)
        if partition(demands, cluster, sizing) is None:
            return cluster
    return None


def _add(task: Task, cluster: Cluster, sizing: Sizing) -> bool:
    """Place one demand: best fit, then what is empty, then one gpulet for its residues, then turns."""
    joined = [piece for _, piece in cluster.pieces() if piece.takes(task.demand)]
    if not joined:
        wanted = sizing.wanted(task.demand, task.rate)
        if wanted is not None:
            wanted.sort(key=lambda want: -want.percent)
            fits = best_fit.all_fit(task, wanted, cluster, sizing)
            if fits and best_fit.allocate(task, wanted, cluster, sizing):
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
