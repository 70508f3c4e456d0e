"""What verbs print: documents for `--json` on stdout, progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from controlplane.files.documents import SCHEMA_VERSION
from controlplane.files.writing import to_json


def say(line: str) -> None:
    """Print progress on stderr: stdout is for results."""
    print(line, file=sys.stderr, flush=True)


def print_json_line(document: Mapping[str, object]) -> None:
    """Print a document like `print_json`, in one line: for a verb that prints one after another."""
    print(json.dumps({"schema_version": SCHEMA_VERSION, **document}, allow_nan=False), flush=True)


def print_json(document: Mapping[str, object]) -> None:
    """Print a document with its schema's version on stdout."""
    print(to_json({"schema_version": SCHEMA_VERSION, **document}), end="", flush=True)
