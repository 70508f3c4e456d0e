"""Numeric kernels: functions on arrays and numbers that numba compiles at their first call.

All commands share numba's cache, so an installation compiles a kernel once. The cache does not notice a
change of another file. Importing numba takes a quarter of a second: a module
of kernels is imported where they run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_listeners: list[Callable[[str], None]] = []


def on_compilation(listener: Callable[[str], None]) -> None:
    """Call `listener` with the name of each function that is compiled from now on."""
    _listeners.append(listener)


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function a kernel; where no folder takes the cache, each process compiles it for itself."""
    njit = _numba().njit
    try:
        compiled: Callable[P, R] = njit(cache=True)(function)
    except RuntimeError:  # an installation that cannot be written, and no home, as in a container
        compiled = njit(function)
    return compiled


@functools.cache
def _numba() -> Any:
    import numba
    from numba.core import event

    class Compilation(event.Listener):
        def on_start(self, event: Any) -> None:
            function = event.data["dispatcher"].py_func
            for listener in _listeners:
                listener(f"{function.__module__}.{function.__name__}")

        def on_end(self, event: Any) -> None:
            """A compilation ended."""

    event.register("numba:compile", Compilation())  # type: ignore[no-untyped-call]
    return numba
