"""What verbs print: documents on stdout; on stderr progress, warnings and problems, as -q and -v say."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controlplane.report.words import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

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


def answer(document: object, view: RenderableType, *, json: bool) -> None:
    """Print what a verb found or did: its document with --json, else its view for a person."""
    if json:
        print_json(document)
    elif isinstance(view, str):
        print(view, end="\n" if view else "")
    else:
        from controlplane.report.tables.terminal import show

        show(view)


def print_json_line(document: object) -> None:
    """Print a document like `print_json`, in one line: for a verb that prints one after another."""
    from controlplane.files.documents import versioned

    print(json.dumps(versioned(document), allow_nan=False), flush=True)


def print_json(document: object) -> None:
    """Print a record or a mapping of them on stdout, with its schema's version."""
    from controlplane.files.documents import versioned
    from controlplane.files.writing import to_json

    print(to_json(versioned(document)), end="", flush=True)


def _quiet(wanted: bool) -> bool:
    if wanted and chosen() is Verbosity.NORMAL:  # -v wins, in whatever order
        choose(Verbosity.QUIET)
    return wanted


def _verbose(ctx: typer.Context, wanted: bool) -> bool:
    if wanted:
        choose(Verbosity.VERBOSE)
    if chosen() is Verbosity.VERBOSE:  # here, or before the verb
        for option in ctx.command.params:
            if isinstance(option.envvar, str) and option.envvar in os.environ:
                say(f"default {option.name} = {os.environ[option.envvar]!r} from {option.envvar}")
    return wanted


Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Print no progress; results, warnings and errors stay.", callback=_quiet
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Print times, defaults from variables, and where an error was raised.",
        callback=_verbose,
    ),
]


def _options(quiet: Quiet = False, verbose: Verbose = False) -> None:
    """Hold the options: `with_verbosity` takes them from here."""


def with_verbosity(command: Any) -> Any:
    """Return a command, or each of a group's, with the options."""
    if hasattr(command, "commands"):
        for inner in command.commands.values():
            with_verbosity(inner)
        return command
    holder = typer.Typer(add_completion=False)
    holder.command()(_options)
    for option in typer.main.get_command(holder).params:
        option.expose_value = False  # the verb has no parameter of this name
        command.params.append(option)
    return command
