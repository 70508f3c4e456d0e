"""Alg 1 as the paper prints it: without partitions squishy bin packing, without turns greedy best-fit.

ELASTICPARTITIONING is `partition`, FINDBESTFIT `_best_fit`, TEMPORALSCHEDULING `_merged`. As printed, neither
looks at what a newcomer does to its neighbours. Unless `as_printed`, a model with several gpulets takes turns
in none: its servers would be no pool. Line 20 names the execution alone; by Sec. 2.2 a batch is
collected and executed within the SLO.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import product

from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.papers.gpulet.gpulets import Cluster, Gpu, Gpulet, Resident
from controlplane.papers.gpulet.sizing import Demand, Sizing
from controlplane.planning.judge.placements import MOST_MODELS

PARTITIONINGS = ((50, 50), (60, 40), (80, 20), (100,))
"""The ways in which the ideal scheduler cuts a GPU."""
LEAST_RPS = 1e-6
"""A rate below this is none: shares of rates are sums of fractions."""

Placing = Callable[[Sequence[Demand], Cluster, Sizing], str | None]
"""Place all demands in a cluster; the reason where one has no place."""


def partition(demands: Sequence[Demand], cluster: Cluster, sizing: Sizing) -> str | None:
    """Place all demands, the one with the least rate x SLO first; the reason where one has no place."""
    for demand in sorted(demands, key=lambda d: (d.rate * d.slo_ms, -d.key)):
        while (rate := demand.rate - cluster.served(demand)) > LEAST_RPS:
            piece = _best_fit(demand, rate, cluster, sizing)
            if piece is None:
                return f"{demand.rate}/s of model {demand.model} find no gpulet"
            while sizing.scheme.turns and piece is not None:
                piece = _merged(piece, cluster, sizing)
    return None


def on_fixed(demands: Sequence[Demand], cluster: Cluster, sizing: Sizing, place: Placing) -> Cluster | None:
    """The first of all combinations of `PARTITIONINGS` on which the demands have a place."""
    for cuts in product(PARTITIONINGS, repeat=len(cluster.gpus)):
        cut = [
            Gpu(gpu.memory_mb, gpu.process_mb, [Gpulet(percent) for percent in percents])
            for gpu, percents in zip(cluster.gpus, cuts, strict=True)
        ]
        fixed = Cluster(cut, cluster.times, cluster.interference)
        if place(demands, fixed, sizing) is None:
            return fixed
    return None


def _best_fit(demand: Demand, rate: float, cluster: Cluster, sizing: Sizing) -> Gpulet | None:
    """The smallest of the remaining gpulets, at least p_ideal large, in which the demand keeps its SLO."""
    ideal = sizing.ideal(demand, rate)
    free = [(gpu, piece) for gpu, piece in cluster.pieces() if not piece.residents]
    for gpu, piece in sorted(free, key=lambda at: at[1].percent):
        if piece.percent < ideal or not gpu.fits(piece, demand):
            continue
        before = gpu.saved()
        if piece.percent == 100 and ideal < 100 and sizing.scheme.cuts:
            gpu.cut(piece, ideal)
        if _settle(piece, {demand: rate}, cluster, sizing):
            return piece
        gpu.restore(before)
    return None


def _merged(piece: Gpulet, cluster: Cluster, sizing: Sizing) -> Gpulet | None:
    """The larger one of the first pair with this gpulet whose models may take turns there, or None."""
    for gpu, other in cluster.pieces():
        if other is piece or not all(_may_join(one, cluster, sizing) for one in (piece, other)):
            continue
        larger, smaller = (piece, other) if piece.percent > other.percent else (other, piece)
        gpus = gpu, cluster.gpu_of(piece)
        before = [own.saved() for own in gpus]
        wanted = defaultdict[Demand, float](float)
        for resident in (*larger.residents, *smaller.residents):
            wanted[resident.demand] += resident.rate
        smaller.clear()
        if (
            len(wanted) <= MOST_MODELS
            and _settle(larger, wanted, cluster, sizing)
            and not larger.saturated
            and cluster.gpu_of(larger).suffices()
        ):
            for own in gpus:
                own.join_empty(sizing.scheme.cuts)
            return larger
        for own, was in zip(gpus, before, strict=True):
            own.restore(was)
    return None


def _may_join(piece: Gpulet, cluster: Cluster, sizing: Sizing) -> bool:
    """Whether a gpulet has time left, and models that have no other one: servers of one pool are alike."""
    if not piece.residents or piece.saturated:
        return False
    alone = all(sum(p.takes(r.demand) is not None for _, p in cluster.pieces()) == 1 for r in piece.residents)
    return alone or sizing.as_printed


def _settle(piece: Gpulet, wanted: Mapping[Demand, float], cluster: Cluster, sizing: Sizing) -> bool:
    """Let a gpulet serve these rates within every SLO; a single model as much of its rate as it can.

    Several models take turns in the longest cycle that suits all; a single one whose rate is too high for any
    runs batch after batch, saturated.
    """

    def time_of(demand: Demand, batch: int) -> float:
        return cluster.time_ms(demand, piece, batch)

    found = sizing.cycle(wanted, time_of)
    if found is not None:
        duty, batches, busy = found
    elif len(wanted) > 1:
        return False
    else:
        (demand,) = wanted
        batch = sizing.saturated_batch(demand, lambda b: time_of(demand, b))
        if not batch:
            return False
        duty = busy = time_of(demand, batch)
        batches = [batch]
    piece.residents = [
        Resident(demand, rate, batch, MILLIS_PER_SECOND * batch / duty)
        for (demand, rate), batch in zip(wanted.items(), batches, strict=True)
    ]
    piece.duty_ms, piece.occupancy = duty, busy / duty
    return True
