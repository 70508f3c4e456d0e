"""The models that a model executes itself: the steps of an ensemble, and calls in Python code (BLS).

Calls are found in the code; names that it computes are declared in the configuration:

    parameters { key: "composing_models" value { string_value: "detect,classify" } }
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from controlplane.domain.errors import InputError
from controlplane.files.reading import read_bytes

PARAMETER = "composing_models"
_CALL = "InferenceRequest"
"""The class with which a model's code calls another model."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The names of the models that code calls; `computed`: it computes others."""

    models: tuple[str, ...]
    computed: bool


def is_ensemble(config: ModelConfig) -> bool:
    """Return whether the model consists of steps, which other models execute."""
    return bool(config.platform == "ensemble" or config.HasField("ensemble_scheduling"))


def composing_models(directory: Path, config: ModelConfig | None, file: str) -> tuple[str, ...]:
    """Return the names of the models that a model executes, sorted; empty for most models.

    `config` is None where it is not known. Raises InputError for code that computes names, none of which is
    declared.
    """
    if config is not None and is_ensemble(config):
        return tuple(sorted({step.model_name for step in config.ensemble_scheduling.step}))
    declared = _declared(config)
    calls = called_models(directory)
    if calls is None:
        return declared
    if calls.computed and not declared:
        names = f" besides {', '.join(calls.models)}" if calls.models else ""
        raise InputError(
            f"executes models{names} whose names its code computes: declare them all in its config.pbtxt: "
            f'parameters {{ key: "{PARAMETER}" value {{ string_value: "one,another" }} }}',
            file=file,
            field=f"parameters.{PARAMETER}",
        )
    return tuple(sorted({*calls.models, *declared}))


def called_models(directory: Path) -> Calls | None:
    """Return the models that a model's code calls; None where it calls none.

    Code that cannot be parsed counts as calling none: Triton says what is wrong with it.
    """
    found: set[str] = set()
    calls, computed = False, False
    for file in directory.glob("[0-9]*/*.py"):
        for call in _calls(file):
            calls = True
            given = next((k.value for k in call.keywords if k.arg == "model_name"), None)
            if isinstance(given, ast.Constant):
                found.add(str(given.value))
            else:
                computed = True
    return Calls(tuple(sorted(found)), computed) if calls else None


def _declared(config: ModelConfig | None) -> tuple[str, ...]:
    if config is None or PARAMETER not in config.parameters:
        return ()
    names = config.parameters[PARAMETER].string_value.split(",")
    return tuple(sorted({name.strip() for name in names if name.strip()}))


def _calls(file: Path) -> Iterator[ast.Call]:
    if file.is_dir():
        return
    code = read_bytes(file)
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name == _CALL:
                yield node
