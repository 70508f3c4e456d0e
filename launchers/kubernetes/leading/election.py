"""Leader election over a Lease, as decisions on values.

Clocks of nodes differ, so a candidate never compares the Lease's times with its own: it waits until the Lease
has stayed the same for its whole duration by the candidate's own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

DURATION_S = 6
"""The time after which a Lease that is not renewed may be taken."""
RENEW_S = 2.0
LOOK_S = 1.0
"""The interval at which a candidate reads the Lease."""


@dataclass(frozen=True, slots=True)
class Record:
    """A Lease's content. `renewed` is the holder's time as text, of which only a change counts.

    `term` is the number of the leadership: each new holder has a higher one.
    """

    holder: str
    term: int
    duration_s: float
    renewed: str


@dataclass(frozen=True, slots=True)
class Known:
    """What a candidate knows: the record, since when it has not changed, and by the candidate's own clock."""

    record: Record | None = None
    since_s: float = 0.0

    def read(self, record: Record | None, now_s: float) -> Known:
        """Return what is known after a read of the Lease."""
        return self if record == self.record else Known(record, now_s)

    def unread(self, now_s: float) -> Known:
        """Return what is known after the API server did not answer: the holder could not renew either."""
        return replace(self, since_s=now_s)


class Move(Enum):
    """What a candidate does now."""

    WAIT = auto()
    MAKE = auto()
    TAKE = auto()


def move(known: Known, identity: str, now_s: float) -> Move:
    """Return what a candidate does: make a Lease that is not there, take a free or expired one, or wait.

    Its own name in the Lease is that of a process that has ended, so it need not wait.
    """
    record = known.record
    if record is None:
        return Move.MAKE
    if record.holder in ("", identity) or now_s - known.since_s >= record.duration_s:
        return Move.TAKE
    return Move.WAIT


def next_term(record: Record | None) -> int:
    """Return the term of the next holder."""
    return 1 if record is None else record.term + 1
