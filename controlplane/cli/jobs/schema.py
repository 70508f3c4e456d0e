"""`ctl schema`: JSON Schemas of the documents."""

from __future__ import annotations

from typing import Annotated

import typer

from controlplane.cli import completers
from controlplane.domain.errors import InputError
from controlplane.files.mistakes import nearest
from controlplane.files.writing import to_json


def schema(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A verb, `spec` or `error`.",
            autocompletion=completers.documents,
        ),
    ],
) -> None:
    """Print the JSON Schema of what a verb prints with --json.

    `spec` is the input of `ctl plan`, `error` what a verb prints that fails, `serve` one line of its output.
    """
    from controlplane.cli import schemas

    if name not in schemas.NAMES:
        raise InputError(f"there is no document {name!r}{nearest(name, schemas.NAMES)}", field="NAME")
    print(to_json(schemas.schema(name)), end="")
