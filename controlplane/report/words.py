"""Numbers, names and other texts in a line for a person."""

from __future__ import annotations

import math
from collections.abc import Sequence

NAMED = 3
"""The largest number of names in a line."""


def number(value: float | None, digits: int = 1) -> str:
    """Format a number; an unknown one (None, NaN) is a dash."""
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def counted(count: int, noun: str) -> str:
    """Return `1 GPU`, `2 GPUs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def names(all_of_them: Sequence[str]) -> str:
    """Return the first three names, and how many more there are."""
    more = len(all_of_them) - NAMED
    return ", ".join(all_of_them[:NAMED]) + (f" +{more}" if more > 0 else "")


def at_quantile(quantile: float) -> str:
    """Return `95 % quantile`."""
    return f"{100 * quantile:g} % quantile"


def printable(text: str, layout: str = "\n\t") -> str:
    """Return text with Python's escapes for what is not printed, but for the characters of `layout`.

    A file's name may hold anything: sequences that recolour or retitle a terminal, bytes that are no UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in layout else c.encode("unicode_escape").decode("ascii") for c in text
    )
