"""Numeric kernels: functions on arrays and numbers that run as Python until machine code pays.

numba takes up to a second to compile a kernel, and a plan of a dozen workloads needs most kernels for some
milliseconds. A kernel is therefore interpreted until that has taken as long as compiling it would, in all
commands together, unless numba's cache holds its machine code. All commands share that cache.

Both ways give the same bits where a kernel keeps to loops over scalars, `math` (but `lgamma`) and arrays that
its caller made: numpy adds in another order than numba, and each numpy function inside a kernel takes a tenth
of a second to compile. A kernel may call kernels of its own module. The cache of a kernel does not notice a
change of another file.
"""

from __future__ import annotations

import atexit
import contextlib
import dis
import functools
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from types import FunctionType
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

COMPILE_S = 0.002
"""Seconds that numba takes for one instruction of a kernel's bytecode."""
FREE_S = 0.1
"""How long all kernels of a process are interpreted before numba is imported, which takes longer."""

_listeners: list[Callable[[str], None]] = []


def on_compilation(listener: Callable[[str], None]) -> None:
    """Call `listener` with the name of each function that is compiled from now on."""
    _listeners.append(listener)


class Kernel(Generic[P, R]):
    """A function that is compiled once interpreting it has taken long, or where that is cached."""

    _together_s: ClassVar[float] = 0.0
    """How long all kernels were interpreted in this process."""

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self.interpreted = function
        self._spent_s = 0.0
        self._run: Callable[P, R] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The result, by machine code or by Python."""
        if self._run is None and Kernel._together_s >= FREE_S:
            self._run = self._choose()
        return (self._run or self._interpret)(*args, **kwargs)

    def _choose(self) -> Callable[P, R]:
        """Machine code where it is cached or interpreting has taken long, else Python."""
        if self._is_cached() or self._spent_s + self._spent_before_s() >= self._patience_s:
            machine_code: Callable[P, R] = self.compiled
            return machine_code
        self._spent_s += self._spent_before_s()
        atexit.register(self._record)
        return self._interpret

    def _interpret(self, *args: P.args, **kwargs: P.kwargs) -> R:
        begin = thread_time()
        result = self.interpreted(*args, **kwargs)
        taken = thread_time() - begin
        Kernel._together_s += taken
        self._spent_s += taken
        if self._run is not None and self._spent_s >= self._patience_s:
            self._run = self.compiled
        return result

    @functools.cached_property
    def _patience_s(self) -> float:
        """How long the kernel is interpreted, in all its calls together: what its compilation takes."""
        assert isinstance(self.interpreted, FunctionType)
        return COMPILE_S * sum(1 for _ in dis.get_instructions(self.interpreted))

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
        return any(map(self._is_fresh, self._cache.parent.glob(f"{self._cache.name}.*.nbi")))

    def _spent_before_s(self) -> float:
        """How long earlier commands interpreted the kernel as it stands in its file."""
        with contextlib.suppress(OSError, ValueError):
            if self._is_fresh(self._seconds):
                return float(self._seconds.read_text())
        return 0.0

    def _record(self) -> None:
        """Leave the next command how long the kernel was interpreted; not where the cache is read-only."""
        with contextlib.suppress(OSError):
            self._seconds.parent.mkdir(parents=True, exist_ok=True)
            self._seconds.write_text(str(self._spent_s))

    @property
    def _cache(self) -> Path:
        """What the names of the kernel's files in numba's cache begin with."""
        code = self.compiled.py_func.__code__
        name = f"{Path(code.co_filename).stem}.{code.co_qualname}-{code.co_firstlineno}"
        return Path(self.compiled.stats.cache_path) / name

    @property
    def _seconds(self) -> Path:
        return self._cache.with_name(f"{self._cache.name}.seconds")

    def _is_fresh(self, file: Path) -> bool:
        source = self.compiled.py_func.__code__.co_filename
        return file.stat().st_mtime >= Path(source).stat().st_mtime


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
