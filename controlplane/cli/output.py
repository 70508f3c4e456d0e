"""The documents that `--json` prints."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.files.documents import SCHEMA_VERSION
from controlplane.files.writing import to_json


def print_json(document: Mapping[str, object]) -> None:
    """Print a document with its schema's version on stdout."""
    print(to_json({"schema_version": SCHEMA_VERSION, **document}), end="", flush=True)
