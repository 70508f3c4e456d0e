"""Documents that verbs print on stdout for `--json`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from controlplane.files.documents import SCHEMA_VERSION
from controlplane.files.writing import to_json


def print_json_line(document: Mapping[str, object]) -> None:
    """Print a document like `print_json`, in one line: for a verb that prints one after another."""
    print(json.dumps({"schema_version": SCHEMA_VERSION, **document}, allow_nan=False), flush=True)


def print_json(document: Mapping[str, object]) -> None:
    """Print a document with its schema's version on stdout."""
    print(to_json({"schema_version": SCHEMA_VERSION, **document}), end="", flush=True)
