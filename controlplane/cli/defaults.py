"""Defaults of options from the user's configuration file."""

from __future__ import annotations

from typing import Any

import typer

from controlplane.cli.verbs import VERBS


def configured(ctx: typer.Context) -> dict[str, Any]:
    """Return the configured defaults of the verb on the command line, by the names of its parameters.

    Raises InputError naming the file and the option that the verb does not have.
    """
    from controlplane.files.config import config_path, read_config, refuse_unknown

    verb = ctx.invoked_subcommand
    path = config_path()
    shared, own = read_config(path, VERBS)
    if verb is None or not (shared or own):
        return {}
    command: Any = ctx.command.get_command(ctx, verb)  # type: ignore[attr-defined]
    known = {
        option.removeprefix("--"): parameter.name
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    }
    mine = own.get(verb, {})
    refuse_unknown(path, verb, mine, known)
    wanted = {**{name: value for name, value in shared.items() if name in known}, **mine}
    return {verb: {known[name]: value for name, value in wanted.items()}}
