"""The place of an endpoint's requests in the queue of its partition at the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PROMISE_WINDOW_S = 2
"""Seconds over which the gateway compares an endpoint's requests with its planned rate."""

LONGEST_MS = 500_000
"""The largest `after_ms`: HAProxy's priority offsets go up to 524,287 ms."""


@dataclass(frozen=True, slots=True)
class Precedence:
    """How an endpoint's requests wait for their partition, and when they are refused.

    Endpoints of one `partition` share a queue. A request goes before one that came earlier if its time plus
    its `after_ms` is smaller. At most `inside` requests of the partition are in its server. Those
    beyond `promised` in PROMISE_WINDOW_S wait behind all others, and are refused while `overloaded_at` wait.
    """

    partition: str
    after_ms: int
    inside: int
    overloaded_at: int
    promised: int


Order = Mapping[str, Precedence]
"""Endpoint -> precedence; an endpoint without one does not wait at the gateway."""
