"""Models that execute other models themselves (business logic scripting of Triton's Python backend)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_CALL = "InferenceRequest"
"""The class with which a model's code calls another model."""


def called_models(directory: Path) -> tuple[str, ...] | None:
    """Return the names of the models that a model's code calls; None where it calls none.

    Names that the code computes are left out. Code that cannot be parsed counts as calling none: Triton
    says what is wrong with it.
    """
    found: set[str] = set()
    calls = False
    for file in directory.glob("[0-9]*/*.py"):
        for call in _calls(file):
            calls = True
            found |= {
                str(given.value.value)
                for given in call.keywords
                if given.arg == "model_name" and isinstance(given.value, ast.Constant)
            }
    return tuple(sorted(found)) if calls else None


def _calls(file: Path) -> Iterator[ast.Call]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name == _CALL:
                yield node
