"""Which eleven points to measure of a model when there is time for no more.

A rule takes three batch sizes (low, middle, high) and says at which of five shares each is measured. All
rules have the ends of both axes; they differ in where the remaining points go. Chosen by what a model fitted
on them errs elsewhere, on models that were measured everywhere; see `DEFAULT`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

POINTS = 11
SHARES = 5
_ALL, _ENDS, _GAPS, _OUTER = (0, 1, 2, 3, 4), (0, 2, 4), (1, 3), (0, 1, 3, 4)
PATTERNS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "fans": (_ENDS, (1, 3, 4), _ALL),
    "frame": (_OUTER, _ENDS, _OUTER),
    "steps": (_ALL, _GAPS, _OUTER),
    "feet": (_ALL, _ENDS, _ENDS),
    "belt": (_ENDS, _ALL, _ENDS),
    "rails": (_ALL, (2,), _ALL),
}
"""For each of (low, middle, high) the positions among the five shares."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern and its batch sizes."""

    pattern: str
    low: int
    middle: int
    high: int

    def points(self, shares: Sequence[float], largest_batch: int) -> tuple[tuple[float, int], ...]:
        """(percent, batch) of the eleven points, sorted; batches above `largest_batch` become it.

        `shares` are five, ascending. Fewer than eleven points remain where batches coincide.
        """
        if len(shares) != SHARES:
            raise ValueError(f"a rule is about {SHARES} shares, not {len(shares)}")
        batches = (min(b, largest_batch) for b in (self.low, self.middle, self.high))
        return tuple(
            sorted(
                {
                    (shares[i], batch)
                    for batch, at in zip(batches, PATTERNS[self.pattern], strict=True)
                    for i in at
                }
            )
        )


def rules() -> Iterator[Rule]:
    """All candidates."""
    for pattern, low, middle, high in product(PATTERNS, (1, 2, 3), (4, 6, 8, 12), (16, 24, 32)):
        yield Rule(pattern, low, middle, high)


DEFAULT = Rule("frame", 1, 4, 32)
"""The rule whose worst error over the four V100 models is smallest."""


def choose(error: Callable[[Rule, str], float], models: Sequence[str]) -> Rule:
    """The rule whose worst error over these models is smallest; the first of equal ones."""
    return min(rules(), key=lambda rule: max(error(rule, model) for model in models))
