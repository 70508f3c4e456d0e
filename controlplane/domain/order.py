"""The order of requests in the queue of a partition at the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PROMISE_WINDOW_S = 2
"""Seconds over which the gateway compares an endpoint's requests with its planned rate."""

LONGEST_MS = 500_000
"""The largest `after_ms`: HAProxy's priority offsets go up to 524,287 ms."""

OVERTAKES_MS = 60_000
"""How long a request of a planned rank lets those of the rank before it pass: longer than any may wait."""

MOST_RANKS = LONGEST_MS // OVERTAKES_MS + 1
_RANK_FACTOR = 2.0

LARGEST_DEFICIT_MS = 20_000
"""What a client may fall behind by: HAProxy's offsets end that far beyond LONGEST_MS."""


def ranks_of(times_ms: Mapping[str, float]) -> Mapping[str, int]:
    """Return the ranks by name, the shortest time first; times within a factor of two are one rank."""
    ranks: dict[str, int] = {}
    rank, first_ms = -1, 0.0
    for name, ms in sorted(times_ms.items(), key=lambda item: item[1]):
        if rank < 0 or ms >= _RANK_FACTOR * first_ms:
            rank, first_ms = rank + 1, ms
        ranks[name] = rank
    return ranks


@dataclass(frozen=True, slots=True)
class Precedence:
    """How an endpoint's requests wait for their partition, and when they are refused.

    Endpoints of one `partition` share a queue. A request goes before one that came earlier if its time plus
    its `after_ms` is smaller. At most `inside` requests of the partition are in its server. Those
    beyond `promised` in PROMISE_WINDOW_S wait behind all others, and are refused while `overloaded_at` wait.
    Each request that a client got through in that window lets later ones of other clients pass that come up
    to `served_ms` after its own, `deficit_ms` in all at most.
    """

    partition: str
    after_ms: int
    inside: int
    overloaded_at: int
    promised: int
    served_ms: int = 0
    deficit_ms: int = 0


Order = Mapping[str, Precedence]
"""Endpoint -> precedence; an endpoint without one does not wait at the gateway."""
