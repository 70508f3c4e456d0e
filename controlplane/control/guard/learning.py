"""Whether a model is slower than planned on all its servers, and which P99s break then. Pure.

A server that lost its quota, or that runs on a bad device, is slow alone. A model is slower than planned
where batches of several partitions certainly take longer at the same time, or those of one did so from the
first on while no other partition shows the planned times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from controlplane.control.guard import batch_times
from controlplane.control.guard.effects import Learn
from controlplane.control.guard.queues import QueueState
from controlplane.control.guard.rule import longer_than_planned, overrun_at
from controlplane.control.guard.state import GuardedPartition, ModelOnGpu, Slower, Watch

TOGETHER_S = 10.0
"""Verdicts on several servers of a model within this time have one cause."""
NEWS = 1.1
"""A larger error than the one that was learned is learned too, if it is larger by this factor: the first one
is of the few batches of a verdict, and the record corrects it."""


def slower(watch: Watch, now_s: float) -> Slower | None:
    """Return by how much the batches of a slow server take longer than planned; None where none does."""
    found = [
        Slower(now_s, queue.promise.model, _factor(queue), queue.slowness < 1.0) for queue in watch.queues
    ]
    return max((one for one in found if one.factor > 1.0), key=lambda one: one.factor, default=None)


def model_error(watch: Watch, watches: Iterable[Watch], known: Mapping[ModelOnGpu, float]) -> Learn | None:
    """Return the error of the model of a slow server; None for a fault of that server, and for no news."""
    seen = watch.slower
    if seen is None:
        return None
    gpu_type = watch.partition.gpu_type
    others = [w for w in watches if w.partition.id != watch.partition.id and w.partition.gpu_type == gpu_type]
    together = [f for other in others for f in _factors(other, seen)]
    if together:
        factor = (seen.factor + sum(together)) / (1 + len(together))
    elif seen.always and not any(_is_as_planned(other, seen.model) for other in others):
        factor = seen.factor
    else:
        return None
    is_news = factor > NEWS * known.get((seen.model, gpu_type), 0.0)
    return Learn(seen.model, gpu_type, factor) if is_news else None


def overrun(watch: Watch, error: Learn) -> float:
    """Return the P99 with this error as a part of its SLO, on the planned share."""
    own = (queue for queue in watch.queues if queue.promise.model == error.model)
    return max((overrun_at(queue, error.factor) for queue in own), default=0.0)


def uncovered(partitions: Iterable[GuardedPartition], error: Learn) -> tuple[str, ...]:
    """Return the partitions of a model whose shadow does not cover this error."""
    return tuple(
        one.id
        for one in partitions
        if one.gpu_type == error.gpu_type
        and any(promise.model == error.model for promise in one.promises)
        and one.covers is not None
        and error.factor > one.covers
    )


def _factor(queue: QueueState) -> float:
    """Return how many times as long as planned batches take, as far as that is certain; else 1."""
    if queue.slowness >= 1.0:
        return max(1.0, batch_times.recently_beside_plan(queue.batches))
    return longer_than_planned(queue)


def _factors(watch: Watch, seen: Slower) -> Iterator[float]:
    """Yield the error of the same model as a partition shows it now, or showed it in a verdict just now."""
    before = watch.slower
    if before is not None and before.model == seen.model and seen.at_s - before.at_s <= TOGETHER_S:
        yield before.factor
    elif _has_planned_share(watch):
        for queue in watch.queues:
            if queue.promise.model == seen.model and (factor := _factor(queue)) > 1.0:
                yield factor


def _is_as_planned(watch: Watch, model: str) -> bool:
    return _has_planned_share(watch) and any(
        math.isfinite(batch_times.beside_plan(queue.batches)[1]) and _factor(queue) == 1.0
        for queue in watch.queues
        if queue.promise.model == model
    )


def _has_planned_share(watch: Watch) -> bool:
    return watch.active.percent <= watch.partition.percent
