"""Documents that verbs print on stdout for `--json`: records, and mappings of them, as plain values."""

from __future__ import annotations

import json

from controlplane.files.documents import versioned
from controlplane.files.writing import to_json


def print_json_line(document: object) -> None:
    """Print a document like `print_json`, in one line: for a verb that prints one after another."""
    print(json.dumps(versioned(document), allow_nan=False), flush=True)


def print_json(document: object) -> None:
    """Print a document with its schema's version on stdout."""
    print(to_json(versioned(document)), end="", flush=True)
