"""`ctl`: the verbs, and the exit code of each kind of error."""

from __future__ import annotations

import gc
import sys

import typer

from controlplane.cli.exits import EXIT_ENGINE, EXIT_INTERRUPTED, exit_code
from controlplane.cli.fleet import apply, destroy, events, redirect, rollback, serve, status
from controlplane.cli.jobs import demo, doctor, plan, profile, render, simulate, train, validate
from controlplane.domain.errors import TrisectError

app = typer.Typer(
    name="ctl",
    help="Plan which share of which GPU each Triton model gets, and run the plan.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_VERBS = (
    doctor,
    profile,
    validate,
    train,
    plan,
    simulate,
    render,
    apply,
    status,
    redirect,
    rollback,
    serve,
    events,
    destroy,
    demo,
)
for _verb in _VERBS:
    _verb.register(app)


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
