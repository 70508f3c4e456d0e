"""`ctl`: the verbs as commands, their help and their ends."""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from controlplane.cli.endings import ClosedPipe, Interrupted, end, handle_signals, misused
from controlplane.cli.output import Quiet, Verbose, Verbosity, choose, detail, with_verbosity
from controlplane.cli.verbs import GROUPS, VERBS

_WIDEST = max(map(len, VERBS))


class _Commands(Mapping[str, Any]):
    """The verbs' commands. A command's module is imported when the command is used."""

    def __getitem__(self, name: str) -> Any:
        verb = VERBS[name]
        module = import_module(f"controlplane.cli.{verb.module}")
        found = getattr(module, f"{name}_", None) or getattr(module, name)
        example = f"Example: {verb.example}"
        if isinstance(found, typer.Typer):  # a verb with verbs of its own
            found.info.epilog = example
            return with_verbosity(typer.main.get_command(found))
        only = typer.Typer(add_completion=False, rich_markup_mode=None)
        only.command(name, epilog=example)(found)
        return with_verbosity(typer.main.get_command(only))

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class _Completion(NamedTuple):
    """A verb as a shell's completion prints it."""

    value: str
    help: str


class _Group(TyperGroup):
    """The verbs as subcommands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(_WIDEST), verb.summary) for name, verb in verbs.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        # The inherited way would import every verb for its summary.
        return [_Completion(name, v.summary) for name, v in VERBS.items() if name.startswith(incomplete)]

    def make_context(self, *given: Any, **named: Any) -> Any:
        try:
            return super().make_context(*given, **named)  # prints `ctl -h`
        except BrokenPipeError:
            raise ClosedPipe from None

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as cause:  # before Typer ends the process without a word
            raise Interrupted(ctx.invoked_subcommand, cause) from None
        except BrokenPipeError:
            raise ClosedPipe from None


app = typer.Typer(
    name="ctl",
    cls=_Group,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="`ctl COMMAND -h` shows a command's options and an example.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"ctl {version('trisect')}")
        raise typer.Exit


@app.callback()
def _ctl(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Plan which share of which GPU each Triton model gets, and run the plan."""


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    choose(Verbosity.NORMAL)
    code = _run(arguments)
    detail(f"exit code {code}")
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        code = app(arguments, prog_name="ctl", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        return misused(error, arguments)
    except Exception as error:
        return end(error, arguments)
    return code or 0


def spare_cores() -> None:
    """Set what makes any process of ours cheaper, before numpy and pydantic are imported."""
    # Imports, files and tables make objects that stay: looking for garbage there took a tenth of a command.
    gc.set_threshold(100_000)
    # numpy's BLAS would spin in one thread for each core: a third of a plan's processor time, for nothing.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # pydantic would read the metadata of every installed package in search of plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def main() -> None:
    """Entry point of the console script."""
    spare_cores()
    handle_signals()
    # `ctl ... >&-`: Python has no stream then, and a file opened next would have its descriptor.
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal's encoding may lack what tables are made of
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
