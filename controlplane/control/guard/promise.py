"""What a plan promises to the requests of one queue. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from controlplane.domain.plan import Placement, ServedModel

HORIZON_S = 7 * 86400.0
"""About one false alarm is allowed in this time."""
MARGIN = 1.25
"""Cluster sizes fall off a little slower than exponentially; measured by benchmarks/serving/guard.py."""
LARGEST_SCALE = 4.0
"""This bounds what is learned of clusters, ..."""
UNPREDICTED_SCALE = 64.0
"""... and this does where the plan has no utilisation."""
HIGHEST_LOAD = 0.95


@dataclass(frozen=True, slots=True)
class Promise:
    """The promise to the requests of one queue: the SLO, at up to this many of them a second.

    `endpoint` is the name the model runs under; `aliases` are the other endpoints that share its queue,
    `endpoints` all of them.
    `execution_ms` is the predicted time of a full batch and `utilisation` the predicted load, None without a
    prediction. `batch` is the largest batch in requests, `inferences` the planned mean of a request: the
    batch that clients send. The request log shows the time of a batch where the model has one instance.
    `longest_ms` is how long a rare request may take; None where the spec does not say. `widest_slo_ms` is the
    largest SLO of the queue's workloads, whose requests may be waited for; None: `slo_ms`, the strictest one.
    `model` is what serves it, `p99_ms` the predicted one and `batch_ms` the predicted times of batches of 1,
    2, ... requests; None and empty without a prediction. `frontend_ms` is what a request spends outside of
    queue and batch, within `p99_ms` but not within `batch_ms`. `client_batch` is the inferences of a request,
    `largest` the largest batch in requests that the model takes while it serves; 0 where its batch is fixed.
    """

    endpoint: str
    slo_ms: float
    rate_rps: float
    execution_ms: float | None = None
    aliases: tuple[str, ...] = ()
    inferences: float = 1.0
    instances: int = 1
    batch: int = 1
    utilisation: float | None = None
    longest_ms: float | None = None
    widest_slo_ms: float | None = None
    p99_ms: float | None = None
    batch_ms: tuple[float, ...] = ()
    frontend_ms: float = 0.0
    model: str = ""
    client_batch: int = 1
    largest: int = 0
    endpoints: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "endpoints", (self.endpoint, *self.aliases))

    @property
    def batch_s(self) -> tuple[float, ...]:
        """The predicted times of batches in seconds."""
        return tuple(time_ms / 1000.0 for time_ms in self.batch_ms)

    @property
    def natural_scale(self) -> float:
        """E[size^2] / E[size] of a healthy queue's clusters above the SLO, in requests.

        Above a high level the backlog is a random walk whose drift is the spare capacity: its excursions have
        2 (u / (1 - u))^2 at a utilisation of u. Without a prediction, the requests within one SLO count as a
        cluster.
        """
        if self.utilisation is None:
            return 1.0 + 0.25 * self.rate_rps * self.slo_ms / 1000.0
        load = min(self.utilisation, HIGHEST_LOAD)
        return 2.0 + 2.0 * (load / (1.0 - load)) ** 2

    @property
    def largest_scale(self) -> float:
        """The largest scale of clusters that may be learned, in requests."""
        return self.natural_scale * (UNPREDICTED_SCALE if self.utilisation is None else LARGEST_SCALE)

    @property
    def rarity(self) -> float:
        """The alarm's height for clusters of scale 1: margin * ln(requests in the horizon) / 2."""
        return 0.5 * MARGIN * math.log(max(self.rate_rps * HORIZON_S, 100.0))

    @property
    def subject(self) -> str:
        """The name of the queue in messages: its first endpoints, and how many more."""
        endpoints, more = self.endpoints, len(self.endpoints) - 3
        return " + ".join(endpoints if more <= 0 else (*endpoints[:3], f"{more} more"))


def promise_of(queue: Sequence[Placement], served: ServedModel, largest: int = 0) -> Promise:
    """Return the promise of the workloads that share a queue. `largest`: of its batches, in inferences.

    They wait in one queue and run in the same batches, so all their requests are evidence for the strictest
    SLO. A hang is judged by the widest one: a request within its SLO shows nothing.
    """
    first, *others = queue
    times_ms = [p.predicted.execution_ms for p in queue if p.predicted.execution_ms is not None]
    loads = [p.predicted.utilisation for p in queue if p.predicted.utilisation is not None]
    rate_rps = sum(p.rate_rps / p.client_batch for p in queue)
    return Promise(
        first.endpoint,
        min(p.slo_ms for p in queue),
        rate_rps,
        max(times_ms, default=None),
        tuple(p.endpoint for p in others),
        inferences=sum(p.rate_rps for p in queue) / rate_rps,
        instances=served.instances,
        batch=max(1, served.batch // first.client_batch),
        utilisation=max(loads, default=None),
        longest_ms=max((p.longest_ms for p in queue if p.longest_ms is not None), default=None),
        widest_slo_ms=max(p.slo_ms for p in queue) if others else None,
        p99_ms=first.predicted.p99_ms,
        batch_ms=first.predicted.batch_ms,
        frontend_ms=first.predicted.frontend_ms or 0.0,
        model=served.model,
        client_batch=first.client_batch,
        largest=largest // first.client_batch,
    )
