"""The user's own defaults of options, from a TOML file.

fleet = "shop"            # for every verb with that option

[plan]
strategy = "igniter"      # for one verb
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from controlplane.domain.errors import InputError
from controlplane.files.documents import read_text
from controlplane.files.mistakes import nearest

SHARED = ("fleet", "launcher", "profiles", "repository")
"""The options that may stand above the tables of verbs."""

Options = Mapping[str, Any]


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

    try:
        content = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"is not TOML: {error}", file=str(path)) from None
    shared: dict[str, Any] = {}
    own: dict[str, Options] = {}
    for key, value in content.items():
        if key in verbs and isinstance(value, Mapping):
            own[key] = value
        elif key in SHARED and not isinstance(value, Mapping):
            shared[key] = value
        else:
            problem = f"is neither an option of all verbs nor a [verb]{nearest(key, {*SHARED, *verbs})}"
            raise InputError(problem, file=str(path), field=key)
    return shared, own


def refuse_unknown(path: Path, verb: str, options: Options, known: Collection[str]) -> None:
    """Raise InputError for the first of a verb's options that the verb does not have."""
    for name in options:
        if name not in known:
            problem = f"`ctl {verb}` has no such option{nearest(name, known)}"
            raise InputError(problem, file=str(path), field=f"{verb}.{name}")
