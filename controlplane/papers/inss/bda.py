"""The two ways to decide batches."""

from __future__ import annotations

from enum import StrEnum


class Bda(StrEnum):
    """How batches are decided once models are placed (problem (4))."""

    EXACT = "exact"
    """Try every batch, since Eq 2 rises and falls with the batch."""
    PAPER = "paper"
    """The binary search of Alg 1, as its text describes it, for comparison."""
