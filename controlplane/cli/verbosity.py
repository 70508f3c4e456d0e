"""The options -q and -v, which stand before or after any verb."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from controlplane.cli.stderr import Verbosity, choose, chosen, say


def _quiet(wanted: bool) -> bool:
    if wanted and chosen() is Verbosity.NORMAL:  # -v wins, in whatever order
        choose(Verbosity.QUIET)
    return wanted


def _verbose(ctx: typer.Context, wanted: bool) -> bool:
    if wanted:
        choose(Verbosity.VERBOSE)
    if chosen() is Verbosity.VERBOSE:  # here, or before the verb
        for line in _defaults(ctx):
            say(line)
    return wanted


def _defaults(ctx: Any) -> list[str]:
    """Return a line for each default that the environment or the user's file gives an option of the verb."""
    from controlplane.files.config import config_path

    own, path = ctx.default_map or {}, config_path()
    lines = [f"default {name} = {value!r} from {path}" for name, value in own.items()]
    for parameter in ctx.command.params:
        variable = parameter.envvar
        if isinstance(variable, str) and variable in os.environ:
            lines.append(f"default {parameter.name} = {os.environ[variable]!r} from {variable}")
    return lines


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
        help="Print times, defaults from files and variables, and where an error was raised.",
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
