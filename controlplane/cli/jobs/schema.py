"""`ctl schema`: JSON Schemas of the documents."""

from __future__ import annotations

from typing import Annotated

import typer

from controlplane.cli import completers
from controlplane.domain.errors import InputError
from controlplane.files.documents import nearest
from controlplane.files.writing import to_json


def schema(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A verb; or `spec`, `ctl plan`'s input; or `error`, what a verb that fails prints.",
            autocompletion=completers.documents,
        ),
    ],
) -> None:
    """Print the JSON Schema of what a verb prints with --json.

    A plan and a spec are files too. `serve` is one line of what it prints.
    """
    from controlplane.cli import schemas

    if name not in schemas.NAMES:
        raise InputError(f"there is no document {name!r}{nearest(name, schemas.NAMES)}", field="NAME")
    print(to_json(schemas.schema(name)), end="")
