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
_MODEL_FILE = "model.py"
"""The file that the Python backend starts with, where the configuration names no other."""
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
    file_name = _MODEL_FILE if config is None else config.default_model_filename or _MODEL_FILE
    calls = called_models(directory, file_name)
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


def called_models(directory: Path, started_by: str = _MODEL_FILE) -> Calls | None:
    """Return the models that a model's code calls; None where it calls none.

    Its code is what the file `started_by` of each version imports from the model's folder. Code that cannot
    be parsed counts as calling none: Triton says what is wrong with it.
    """
    found: set[str] = set()
    calls, computed = False, False
    for tree in _code(directory, started_by):
        for call in _calls(tree):
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


def _code(directory: Path, started_by: str) -> Iterator[ast.Module]:
    """Parse the files that versions start with, and those of the model's folder that these import."""
    left = list(directory.glob(f"[0-9]*/{Path(started_by).name}"))
    seen: set[Path] = set()
    while left:
        file = left.pop()
        if file in seen or not file.is_relative_to(directory) or file.is_dir() or not file.exists():
            continue
        seen.add(file)
        code = read_bytes(file)  # its error is a ValueError too
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError):
            continue
        yield tree
        inside = file.relative_to(directory)
        # A model's code finds its version's folder by itself, and its own by `model_repository`.
        roots = (directory / inside.parts[0], directory)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                left += (path for name in node.names for root in roots for path in _files(root, name.name))
            elif isinstance(node, ast.ImportFrom):
                within = roots if node.level == 0 else file.parents[node.level - 1 : node.level]
                names = [".".join(filter(None, (node.module, name.name))) for name in node.names]
                left += (path for name in names for root in within for path in _files(root, name))


def _files(root: Path, name: str) -> Iterator[Path]:
    """Return where the modules of a dotted name may be: each package's file, and the last one's."""
    path = root
    for part in name.split("."):
        path /= part
        yield path.with_name(f"{part}.py")
        yield path / "__init__.py"


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name == _CALL:
                yield node
