"""What verbs print on stderr: progress, warnings and problems, as much as -q and -v say."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from controlplane.report.printable import printable

if TYPE_CHECKING:
    from controlplane.report.progress import Bar

_WARNING = "warning: "


class Verbosity(Enum):
    """How much is printed on stderr."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


class _Stderr:
    """What this command may print, and since when it runs."""

    def __init__(self) -> None:
        self.verbosity = Verbosity.NORMAL
        self.begin_s = time.monotonic()


_STDERR = _Stderr()


def choose(verbosity: Verbosity) -> None:
    """Set how much is printed; its times begin now."""
    _STDERR.verbosity = verbosity
    _STDERR.begin_s = time.monotonic()


def chosen() -> Verbosity:
    """Return how much is printed."""
    return _STDERR.verbosity


def say(line: str) -> None:
    """Print progress on stderr, since stdout is for results; with -q only what begins with `warning: `."""
    if chosen() is Verbosity.QUIET and not line.startswith(_WARNING):
        return
    warn(line)


def detail(line: str) -> None:
    """Print what only -v shows."""
    if chosen() is Verbosity.VERBOSE:
        warn(line)


def warn(line: str) -> None:
    """Print a warning or a problem on stderr; where that is closed or its disk full, the line is lost."""
    at = f"{time.monotonic() - _STDERR.begin_s:8.3f} s  " if chosen() is Verbosity.VERBOSE else ""
    with contextlib.suppress(OSError):
        print(f"{at}{printable(line)}", file=sys.stderr, flush=True)


def progress_bar() -> Bar:
    """Return a progress bar, or lines in a log, on stderr; -q leaves them out."""
    from controlplane.report.progress import Bar

    return Bar(say, shown=chosen() is not Verbosity.QUIET)


def say_when_compiling() -> Callable[[], bool]:
    """Announce each of our kernels when it is compiled, which delays the first command of an installation.

    Returns a function that says if any was.
    """
    from controlplane import kernels

    compiled: list[str] = []

    def announce(name: str) -> None:
        package, _, rest = name.partition(".")
        if package != "controlplane":
            return  # a part of numba
        if not compiled:
            say("compiling for this processor, once in an installation:")
        compiled.append(name)
        say(f"  {rest}")

    kernels.on_compilation(announce)
    return lambda: bool(compiled)
