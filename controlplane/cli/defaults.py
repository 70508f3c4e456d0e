"""Defaults of options from the user's configuration file.

fleet = "shop"            # for every verb with that option

[plan]
strategy = "igniter"      # for one verb
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import typer

from controlplane.cli.verbs import FORMER_VERBS, VERBS
from controlplane.domain.errors import InputError
from controlplane.domain.serving import LauncherName

SHARED = ("fleet", "launcher", "profiles", "repository")
"""The options that may stand above the tables of verbs."""

Options = Mapping[str, Any]


def _nearest(name: str, known: Collection[str]) -> str:
    from controlplane.files.mistakes import nearest

    return nearest(name, known)


def config_path() -> Path:
    """Return where the file is: $TRISECT_CONFIG, else trisect/config.toml in the user's configuration."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(os.environ.get("TRISECT_CONFIG") or Path(home) / "trisect" / "config.toml")


def read_config(path: Path, verbs: Collection[str]) -> tuple[Options, Mapping[str, Options]]:
    """Return the defaults for all verbs, and for each verb. A missing file is an empty one.

    Raises InputError naming the line for text that is not TOML, and the field for an unknown key.
    """
    if not path.exists() and "TRISECT_CONFIG" not in os.environ:
        return {}, {}
    import tomllib

    from controlplane.files.documents import read_text

    try:
        content = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"is not TOML: {error}", file=str(path)) from None
    shared: dict[str, Any] = {}
    own: dict[str, Options] = {}
    for key, value in content.items():
        verb = FORMER_VERBS.get(key, key)
        if verb in verbs and isinstance(value, Mapping):
            own[verb] = {**own.get(verb, {}), **value}
        elif key in SHARED and not isinstance(value, Mapping):
            shared[key] = value
        else:
            problem = f"is neither an option of all verbs nor a [verb]{_nearest(key, {*SHARED, *verbs})}"
            raise InputError(problem, file=str(path), field=key)
    return shared, own


def _refuse_unknown(path: Path, verb: str, options: Options, known: Collection[str]) -> None:
    """Raise InputError for the first of a verb's options that the verb does not have."""
    for name in options:
        if name not in known:
            problem = f"`ctl {verb}` has no such option{_nearest(name, known)}"
            raise InputError(problem, file=str(path), field=f"{verb}.{name}")


def launcher() -> LauncherName | None:
    """Return the launcher of new fleets whose section names none: the environment's, else the file's.

    Raises InputError for a name that is none.
    """
    variable, path = "TRISECT_LAUNCHER", config_path()
    given = os.environ.get(variable)
    name = given or read_config(path, VERBS)[0].get("launcher")
    if name is None or name in list(LauncherName):
        return None if name is None else LauncherName(name)
    problem = f"{name!r} is none of {', '.join(LauncherName)}"
    if given:
        raise InputError(problem, field=f"${variable}")
    raise InputError(problem, file=str(path), field="launcher")


def configured(ctx: typer.Context) -> dict[str, Any]:
    """Return the configured defaults of the verb on the command line, by the names of its parameters.

    Raises InputError naming the file and the option that the verb does not have.
    """
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
    _refuse_unknown(path, verb, mine, known)
    wanted = {**{name: value for name, value in shared.items() if name in known}, **mine}
    return {verb: {known[name]: value for name, value in wanted.items()}}
