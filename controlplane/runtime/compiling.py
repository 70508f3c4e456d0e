"""Numeric kernels are compiled on the first use of each verb: a pause that is explained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def say_when_compiling(say: Callable[[str], None]) -> Callable[[], bool]:
    """From now on `say` is told, once, when kernels are not found in their cache. Returns whether it was."""
    from numba.core import event

    class Once(event.Listener):
        told = False

        def on_start(self, event: Any) -> None:
            if not self.told:
                self.told = True
                say("compiling for this processor: once for each verb, about half a minute")

        def on_end(self, event: Any) -> None:
            """Nothing is said."""

    once = Once()
    event.register("numba:compile", once)  # type: ignore[no-untyped-call]
    return lambda: once.told
