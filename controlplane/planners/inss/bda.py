"""The choice between the two ways to decide batches."""

from __future__ import annotations

from enum import StrEnum


class Bda(StrEnum):
    """How batches are decided once models are placed (problem (4))."""

    EXACT = "exact"
    """Every batch is tried: the queue makes Eq 2 rise and fall with the batch."""
    PAPER = "paper"
    """The binary search of Alg 1, as its text describes it; for comparison."""
