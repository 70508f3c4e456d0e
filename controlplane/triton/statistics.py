"""Triton's statistics: cumulative counters, whose differences over a window give exact means.

Every execution counts once, under its batch size, so means by batch size are exact too.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import astuple, replace
from typing import Any

from controlplane.domain.errors import EngineError
from controlplane.domain.observation import BatchStatistics, Entry, ModelStatistics, combine

NANOS_PER_MILLI = 1e6
_COUNTERS = (
    *("inferences", "executions", "successes", "failures"),
    *("queue_ns", "success_ns", "responses"),
)


def parse_statistics(endpoint: str, answer: Mapping[str, Any]) -> ModelStatistics:
    """Parse the JSON of GET /v2/models/M/stats. Counters that are missing there are 0."""
    every: Entry = functools.reduce(combine, answer.get("model_stats") or [{}])
    totals = every.get("inference_stats", {})
    places = every.get("response_stats", {}).values()
    return ModelStatistics(
        model=endpoint,
        inferences=every.get("inference_count", 0),
        executions=every.get("execution_count", 0),
        successes=_of(totals, "success", "count"),
        failures=_of(totals, "fail", "count"),
        queue_ns=_of(totals, "queue", "ns"),
        success_ns=_of(totals, "success", "ns"),
        batches={
            row["batch_size"]: BatchStatistics(
                executions=_of(row, "compute_infer", "count"),
                compute_input_ns=_of(row, "compute_input", "ns"),
                compute_infer_ns=_of(row, "compute_infer", "ns"),
                compute_output_ns=_of(row, "compute_output", "ns"),
            )
            for row in every.get("batch_stats", [])
        },
        # Counted by their place in the answer; errors are none.
        responses=sum(
            _of(place, kind, "count") for place in places for kind in ("success", "empty_response")
        ),
    )


def difference(before: ModelStatistics, after: ModelStatistics) -> ModelStatistics:
    """Return the difference of two readings of one model, without batch sizes that did not run.

    Raises EngineError where a counter decreased: the model was reloaded, or its server restarted.
    """
    batches = {}
    for size, now in after.batches.items():
        then = before.batches.get(size, BatchStatistics(0, 0, 0, 0))
        if now.executions < then.executions:
            raise _restarted(after.model)
        if now.executions > then.executions:
            batches[size] = BatchStatistics(*map(operator.sub, astuple(now), astuple(then)))
    if after.inferences < before.inferences or after.success_ns < before.success_ns:
        raise _restarted(after.model)
    return replace(
        after, batches=batches, **{name: getattr(after, name) - getattr(before, name) for name in _COUNTERS}
    )


def execution_ms(batch: BatchStatistics) -> float:
    """Return the mean time of an execution, including input and output; the counts must not be 0."""
    total_ns = batch.compute_input_ns + batch.compute_infer_ns + batch.compute_output_ns
    return total_ns / batch.executions / NANOS_PER_MILLI


def mean_execution_ms(window: ModelStatistics, batch: int) -> float:
    """Return the mean execution time of one batch size. Raises EngineError where there was none."""
    executions = window.batches.get(batch)
    if executions is None:
        seen = ", ".join(str(size) for size in sorted(window.batches)) or "none"
        raise EngineError(f"{window.model}: no batch of {batch}; Triton formed batches of {seen}")
    return execution_ms(executions)


def queue_ms(statistics: ModelStatistics) -> float | None:
    """Return the mean time of a request in the queue; None where none succeeded."""
    return statistics.queue_ns / statistics.successes / NANOS_PER_MILLI if statistics.successes else None


def inferences_each(statistics: ModelStatistics) -> float | None:
    """Return the mean number of inferences in a request; None where none succeeded."""
    return statistics.inferences / statistics.successes if statistics.successes else None


def compute_ms(statistics: ModelStatistics) -> float | None:
    """Return the mean time of all executions of any batch size; None where none ran."""
    executions = sum(b.executions for b in statistics.batches.values())
    if not executions:
        return None
    return sum(execution_ms(b) * b.executions for b in statistics.batches.values()) / executions


def _of(counters: Mapping[str, Any], name: str, field: str) -> int:
    return int(counters.get(name, {}).get(field, 0))


def _restarted(model: str) -> EngineError:
    return EngineError(f"{model}: its counters decreased between two readings: it was loaded again")
