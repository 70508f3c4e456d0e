"""Numeric kernels: functions on arrays and numbers that run as Python until machine code pays.

numba takes up to a second to compile a kernel, and a plan of a dozen workloads needs most kernels for some
milliseconds. A kernel is therefore interpreted until that has taken as long as compiling it would, unless
numba's cache holds its machine code. All commands share that cache.

Both ways give the same bits where a kernel keeps to loops over scalars, `math` (but `lgamma`) and arrays that
its caller made: numpy adds in another order than numba, and each numpy function inside a kernel takes a tenth
of a second to compile. A kernel may call kernels of its own module. The cache of a kernel does not notice a
change of another file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

PATIENCE_S = 1.0
"""How long a kernel is interpreted, in all its calls together: about what its compilation takes."""

_listeners: list[Callable[[str], None]] = []


def on_compilation(listener: Callable[[str], None]) -> None:
    """Call `listener` with the name of each function that is compiled from now on."""
    _listeners.append(listener)


class Kernel(Generic[P, R]):
    """A function that is compiled once interpreting it has taken long, or where that is cached."""

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self.interpreted = function
        self._left_s = PATIENCE_S
        self._run: Callable[P, R] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The result, by machine code or by Python."""
        if self._run is None:
            self._run = self.compiled if self._is_cached() else self._interpret
        return self._run(*args, **kwargs)

    def _interpret(self, *args: P.args, **kwargs: P.kwargs) -> R:
        begin = thread_time()
        result = self.interpreted(*args, **kwargs)
        self._left_s -= thread_time() - begin
        if self._left_s <= 0.0:
            self._run = self.compiled
        return result

    @functools.cached_property
    def compiled(self) -> Any:
        """The function for numba, which compiles it at its first call, with the kernels that it calls."""
        function = self.interpreted
        assert isinstance(function, FunctionType)
        known = dict(function.__globals__)
        for name in function.__code__.co_names:
            if isinstance(known.get(name), Kernel):
                known[name] = known[name].compiled
        linked = FunctionType(function.__code__, known, function.__name__)
        linked.__module__ = function.__module__
        return _numba().njit(cache=True)(linked)

    def _is_cached(self) -> bool:
        """Whether numba's cache holds machine code that is no older than the kernel's file."""
        code = self.compiled.py_func.__code__
        source = Path(code.co_filename)
        indexes = Path(self.compiled.stats.cache_path).glob(
            f"{source.stem}.{code.co_qualname}-{code.co_firstlineno}.*.nbi"
        )
        return any(index.stat().st_mtime >= source.stat().st_mtime for index in indexes)


def kernel(function: Callable[P, R]) -> Kernel[P, R]:
    """Make a function a kernel."""
    return Kernel(function)


@functools.cache
def _numba() -> Any:
    """numba, imported where the first kernel runs: a command without any is spared a quarter of a second."""
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
