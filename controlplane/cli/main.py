"""`ctl`: the verbs, and the exit code of each kind of error."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

from controlplane.cli.exits import EXIT_ENGINE, EXIT_INTERRUPTED, exit_code
from controlplane.domain.errors import TrisectError


class _Verb(NamedTuple):
    """A verb's module, which has a function or an app of the verb's name, and its line in `ctl --help`."""

    module: str
    summary: str


VERBS: Mapping[str, _Verb] = {
    "doctor": _Verb("jobs.doctor", "Check this host for GPUs, Triton, HAProxy, Docker and quotas."),
    "profile": _Verb("jobs.profile", "Measure models and write a profile of each."),
    "validate": _Verb("jobs.validate", "Compare predicted latencies with measured ones."),
    "train": _Verb("jobs.train", "Train a policy for `ctl plan --strategy inss`."),
    "plan": _Verb("jobs.plan", "Choose the GPU, share and batch of every workload."),
    "simulate": _Verb("jobs.simulate", "Simulate a plan under load."),
    "render": _Verb("jobs.render", "Write the model repositories of a plan."),
    "apply": _Verb("fleet.apply", "Make the running fleet match a plan."),
    "status": _Verb("fleet.status", "Show a fleet's servers and their latencies."),
    "redirect": _Verb("fleet.redirect", "Move a workload's traffic to its shadow, or back."),
    "rollback": _Verb("fleet.rollback", "Return to the plan before the last one."),
    "serve": _Verb("fleet.serve", "Run the controller of a fleet."),
    "events": _Verb("fleet.events", "Show the history of a fleet."),
    "destroy": _Verb("fleet.destroy", "Stop a fleet."),
    "token": _Verb("fleet.token", "Grant and revoke clients' access to endpoints."),
    "demo": _Verb("jobs.demo", "Run every step on this host with real Tritons."),
}


class _Commands(Mapping[str, Any]):
    """The verbs' commands. A command's module is imported when the command is used."""

    def __getitem__(self, name: str) -> Any:
        verb = VERBS[name]
        found = getattr(import_module(f"controlplane.cli.{verb.module}"), name)
        if isinstance(found, typer.Typer):  # a verb with verbs of its own
            return typer.main.get_command(found)
        only = typer.Typer(add_completion=False, rich_markup_mode=None)
        only.command(name)(found)
        return typer.main.get_command(only)

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class _Group(TyperGroup):
    """The verbs as subcommands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.summary) for name, verb in VERBS.items()])


app = typer.Typer(
    name="ctl",
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _ctl() -> None:
    """Plan which share of which GPU each Triton model gets, and run the plan."""


def main() -> None:
    """Entry point of the console script."""
    # Imports, files and tables make objects that stay: looking for garbage there took a tenth of a command.
    gc.set_threshold(100_000)
    try:
        app()
    except TrisectError as error:
        print(f"ctl: {error}", file=sys.stderr)
        sys.exit(exit_code(error))
    except OSError as error:
        if error.filename is None:
            raise
        # The host's fault: a directory that this user may not enter, a disk that is gone.
        print(f"ctl: {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(EXIT_ENGINE)
    except KeyboardInterrupt:
        print("ctl: interrupted; run the same command again to continue", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
