"""Text for a terminal, in which no name from a file steers it."""

from __future__ import annotations


def printable(text: str, layout: str = "\n\t") -> str:
    """Return text with Python's escapes for what is not printed, but for the characters of `layout`.

    A file's name may hold anything: sequences that recolour or retitle a terminal, bytes that are no UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in layout else c.encode("unicode_escape").decode("ascii") for c in text
    )
