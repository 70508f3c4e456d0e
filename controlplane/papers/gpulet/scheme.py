"""What the schedulers of the family differ in, and where the authors' code differs from their text."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.papers.gpulet.times import SIZES


@dataclass(frozen=True, slots=True)
class Reading:
    """The text of the paper, or the authors' code where that does something else.

    steepest_step: p_eff is the upper end of the steepest step of the throughput between 20 and 80 %, not the
    size with the highest throughput per percent. unserved_rps: a rest of this rate is dropped. accepted: the
    part of a rate that is enough once neighbours count. largest_tried: batches above are never tried.
    neighbour_cycles: instead of a neighbour's times beside the newcomer, two of its duty cycles and what its
    host takes are held against its SLO. slack: a residue may exceed its SLO by this factor. first_cycle_only:
    of the cycles for a round of several models only the longest that suits the newcomer is tried.
    """

    steepest_step: bool
    unserved_rps: int
    accepted: float
    largest_tried: int
    neighbour_cycles: bool
    slack: float
    first_cycle_only: bool


PAPER = Reading(False, 0, 1.0, 32, False, 1.0, False)
CODE = Reading(True, 15, 0.85, 31, True, 1.05, True)


@dataclass(frozen=True, slots=True)
class Scheme:
    """One scheduler of the family.

    sizes: the shares that a gpulet may have. interference: neighbours slow a model. turns: models may take
    turns in a gpulet, at most `residents` of them. greedy: each model gets the smallest share whose saturated
    throughput carries its rate (greedy best-fit). cuts: whole GPUs are cut in two.
    """

    name: str
    sizes: tuple[int, ...] = SIZES
    interference: bool = False
    turns: bool = True
    greedy: bool = False
    cuts: bool = True
    residents: int = 3

    @property
    def partitions(self) -> bool:
        """Whether GPUs are partitioned at all."""
        return self.sizes != (100,)


SBP = Scheme("sbp", sizes=(100,))
HALVES = Scheme("sbp 1:1", sizes=(50,))
"""SBP on GPUs cut in halves (Fig 5); no strategy of its own."""
GREEDY = Scheme("greedy-best-fit", turns=False, greedy=True)
GPULET = Scheme("gpulet")
GPULET_INT = Scheme("gpulet+int", interference=True)
