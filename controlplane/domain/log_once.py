"""What is said once, of something that is tried or looked at again and again."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable


class LogOnce:
    """Tells what is new: what begins, changes, or was last said `every_s` ago."""

    def __init__(self, every_s: float = math.inf) -> None:
        self._every_s = every_s
        self._said: dict[Hashable, tuple[str, float]] = {}

    def is_new(self, what: str, about: Hashable = "", now_s: float = 0.0) -> bool:
        """Return whether to say this about something; nothing (an empty text) is said of it at first."""
        self._said = {key: said for key, said in self._said.items() if now_s - said[1] < self._every_s}
        if self._said.get(about, ("", now_s))[0] == what:
            return False
        self._said[about] = what, now_s
        return True


class Troubles:
    """Says a trouble when it begins or changes, not at each try."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._once = LogOnce()

    def met(self, error: Exception) -> None:
        """Say it, unless it is the one that was said last."""
        if self._once.is_new(str(error)):
            self._say(str(error))

    def over(self) -> None:
        """Note that a try succeeded: the same trouble is said again when it comes back."""
        self._once.is_new("")
