"""Calls that are made of a plain Triton and of a fleet, each a function of the target that returns what came.

`CASES` has them in the order in which they are made. A case with a `row` must differ, and that row is in
docs/compatibility.md; all others must be equal, in status, headers, metadata, body and order. Metrics come
first: what a server counted before a redirect stays in another one's.
"""

from conformance_calls import (
    bodies,
    descriptions,
    inferences,
    metrics,
    over_http,
    queues,
    sequences,
    settings,
    streams,
)
from conformance_calls.case import Case, Target

__all__ = ["CASES", "Case", "Target"]

CASES: list[Case] = [
    *metrics.FIRST,
    *inferences.CASES,
    *sequences.CASES,
    *streams.CASES,
    *queues.CASES,
    *over_http.CASES,
    *bodies.CASES,
    *descriptions.CASES,
    *settings.CASES,
    *metrics.CASES,
    *streams.LAST,
]
