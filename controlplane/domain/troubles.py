"""Troubles of something that is tried again and again."""

from __future__ import annotations

from collections.abc import Callable


class Troubles:
    """Say a trouble when it begins or changes, not at each try."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._present = ""

    def met(self, error: Exception) -> None:
        """Say it, unless it is the one that was said last."""
        if str(error) != self._present:
            self._present = str(error)
            self._say(self._present)

    def over(self) -> None:
        """Note that a try succeeded: the same trouble is said again when it comes back."""
        self._present = ""
