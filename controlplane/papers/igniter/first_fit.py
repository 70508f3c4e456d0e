"""The paper's first-fit-decreasing baselines.

FFD+ takes the lower bound of each share and looks no further: its plans break promises by design. FFD++ takes
the first GPU where Alg 2 finds room.
"""

from __future__ import annotations

from controlplane.papers.igniter.igniter import Greedy
from controlplane.papers.igniter.placement import Pick


def plain() -> Greedy:
    """FFD+."""
    return Greedy("ffd+", Pick.FIRST_FLOOR)


def validated() -> Greedy:
    """FFD++."""
    return Greedy("ffd++", Pick.FIRST_FIT)
