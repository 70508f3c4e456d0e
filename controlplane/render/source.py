"""Reading of a source model's folder, with the models that it executes: the only effect of rendering.

The configuration is the one that Triton made of the written one, where that is kept (`files.models`). A model
executes the steps of an ensemble, and what its Python code calls (BLS): calls are found in the code; names
that it computes are declared in the configuration:

    parameters { key: "composing_models" value { string_value: "detect,classify" } }
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from controlplane.domain import units
from controlplane.domain.errors import InputError
from controlplane.files.mistakes import nearest
from controlplane.files.models import read_completed, read_sample_shapes
from controlplane.files.pinned import CONFIG_NAME, ModelFolder, Pin
from controlplane.files.pinned.content import CACHE
from controlplane.files.reading import read_bytes
from controlplane.render.config import (
    backend_of,
    batch_limit,
    check_servable,
    is_complete,
    is_ensemble,
    parse_config,
    stubs_on_gpu,
    with_sample_shapes,
)

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


def composing_models(directory: Path, config: ModelConfig | None, file: str) -> tuple[str, ...]:
    """Return the names of the models that a model executes, sorted; empty for most models.

    `config` is None where it is not known. Raises InputError for code that computes names, none of which is
    declared.
    """
    if config is not None and is_ensemble(config):
        return tuple(sorted({step.model_name for step in config.ensemble_scheduling.step}))
    file_name, text = _MODEL_FILE, ""
    if config is not None:
        file_name = config.default_model_filename or _MODEL_FILE
        text = config.parameters[PARAMETER].string_value if PARAMETER in config.parameters else ""
    declared = tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))
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


_COMPLETES = b"auto_complete_config"
"""The function of a Python model that completes its configuration."""


@dataclass(frozen=True, slots=True)
class SourceModel:
    """A model of the user's repository. `others` names everything in its folder except config.pbtxt.

    `composing` are the models that it executes itself, each with its own. `pinned` is the folder of the copy
    that servers read; `directory` where there is none.
    """

    name: str
    directory: str
    config: ModelConfig
    others: tuple[str, ...]
    composing: tuple[SourceModel, ...] = ()
    pinned: str | None = None


def source_models(repository: Path) -> tuple[str, ...]:
    """Return the names of all models in a repository, sorted: folders with a config.pbtxt or a version.

    Raises InputError if the repository does not exist.
    """
    if not repository.is_dir():
        raise InputError(
            "is not a directory; name your model repository with --repository", file=str(repository)
        )
    return tuple(sorted(p.name for p in repository.iterdir() if _is_model(p)))


def all_models(repository: Path) -> tuple[str, ...]:
    """Return what `source_models` does. Raises InputError if there is no model too."""
    found = source_models(repository)
    if not found:
        others = ", ".join(no_models(repository))
        bare = f"; folders without one: {others}" if others else ""
        raise InputError(
            f"has no model (a folder with a config.pbtxt or a version){bare}", file=str(repository)
        )
    return found


def files_beside(repository: Path) -> tuple[str, ...]:
    """Return the names of the files beside a repository's models, sorted: no server has them."""
    return tuple(sorted(p.name for p in repository.iterdir() if p.is_file() and not p.name.startswith(".")))


def no_models(repository: Path) -> tuple[str, ...]:
    """Return the names of the other folders of a repository, sorted: they have no config and no version."""
    others = (p for p in repository.iterdir() if p.is_dir() and not p.name.startswith("."))
    return tuple(sorted(p.name for p in others if not _is_model(p)))


def _is_model(folder: Path) -> bool:
    if not folder.is_dir() or folder.name.startswith("."):
        return False
    return (folder / CONFIG_NAME).is_file() or any(_is_version(p) for p in folder.iterdir())


def _is_version(path: Path) -> bool:
    return path.name.isdigit() and path.is_dir()


def read_written(directory: Path) -> ModelConfig | None:
    """Return the configuration that the user wrote; None where there is no file.

    Raises InputError, naming file and line, for one that cannot be read.
    """
    file = directory / CONFIG_NAME
    try:
        # As in Triton, a comment may have another encoding.
        return parse_config(read_bytes(file).decode(errors="surrogateescape"), str(file))
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def to_complete(repository: Path, model: str) -> bool:
    """Return whether Triton has yet to complete the model's configuration. Raises InputError."""
    directory = repository.resolve() / model
    written = read_written(directory)
    if written is not None and is_complete(written) and not _is_changed_by_loading(directory, written):
        return False
    return read_completed(directory) is None


def _is_changed_by_loading(directory: Path, written: ModelConfig) -> bool:
    """Return whether a Triton serves another configuration than the complete one that is written.

    Backends complete more than what is missing (batching, of an ONNX file), and so may a Python model's code.
    """
    if is_ensemble(written):
        return False
    if backend_of(written) != "python":
        return True
    return any(_COMPLETES in read_bytes(file) for file in directory.rglob("*.py") if file.is_file())


def read_source(repository: Path, model: str) -> SourceModel:
    """Read one model of a source repository, with the models that it executes.

    Raises InputError, naming file and line, for an invalid name, a missing folder or version, a configuration
    that is broken, or missing and not completed, and for a model that cannot be served in a partition.
    """
    return _read(repository, model, ())


def folders_of(source: SourceModel) -> list[ModelFolder]:
    """Return what is pinned of a model: its folder and those of all models that it executes."""
    found = {}
    for one in _with_all(source):
        text = str(text_format.MessageToString(one.config))
        found[one.name] = ModelFolder(one.name, Path(one.directory), text)
    return list(found.values())


def pinned_at(source: SourceModel, pin: Pin) -> SourceModel:
    """Return a model, with those that it executes, as servers read it from its copy."""
    return replace(
        source,
        pinned=f"{pin.repository}/{source.name}",
        composing=tuple(pinned_at(one, pin) for one in source.composing),
    )


def _with_all(source: SourceModel) -> Iterator[SourceModel]:
    yield source
    for one in source.composing:
        yield from _with_all(one)


def step_limits(source: SourceModel) -> dict[str, int]:
    """Return the models that a model executes itself, at any depth, with the largest batch of each.

    An ensemble is served with no batch of its own: 1.
    """
    inner = [one for one in _with_all(source) if one is not source]
    return {one.name: 1 if is_ensemble(one.config) else batch_limit(one.config) for one in inner}


def stubs(source: SourceModel) -> dict[str, int]:
    """Return the processes of Python models that may use a GPU, of a model and those that it executes."""
    counted = {one.name: stubs_on_gpu(one.config) for one in _with_all(source)}
    return {name: count for name, count in counted.items() if count}


def steps_of(source: SourceModel) -> tuple[str, ...]:
    """Return the models that execute an ensemble, at any depth; empty for other models."""
    if not is_ensemble(source.config):
        return ()
    return tuple(dict.fromkeys(name for one in source.composing for name in steps_of(one) or (one.name,)))


def with_composing(repository: Path, models: Sequence[str]) -> tuple[str, ...]:
    """Return these models and all that they execute, by their written configurations and code.

    Raises InputError for a configuration that cannot be read, and as `composing_models` does.
    """
    found: dict[str, None] = {}
    left = list(models)
    while left:
        model = left.pop(0)
        directory = repository.resolve() / units.safe_name(model, "model")
        if model not in found and directory.is_dir():
            left.extend(composing_models(directory, read_written(directory), str(directory / CONFIG_NAME)))
        found[model] = None
    return tuple(found)


def _read(repository: Path, model: str, above: tuple[str, ...]) -> SourceModel:
    """Read a model that those `above` execute."""
    units.safe_name(model, "model")
    directory = repository.resolve() / model
    if not directory.is_dir():
        problem = f"there is no such model directory{nearest(model, source_models(repository))}"
        raise InputError(problem, file=str(directory), field="model")
    file = directory / CONFIG_NAME
    config = with_sample_shapes(_config(directory), read_sample_shapes(directory))
    check_servable(config, str(file))
    # Without what leads to nothing, as a link may.
    parts = (p for p in directory.iterdir() if p.name not in (CONFIG_NAME, CACHE) and p.exists())
    others = tuple(sorted(p.name for p in parts if not p.name.startswith(".")))
    if not any(_is_version(directory / name) for name in others):
        raise InputError(
            "has no version: put the model's files into a folder named 1 inside", file=str(directory)
        )
    names = composing_models(directory, config, str(file))
    composing = tuple(_composing(repository, name, (*above, model), str(file)) for name in names)
    several = any(one.config.model_transaction_policy.decoupled for one in composing)
    if is_ensemble(config) and config.model_transaction_policy.decoupled != several:
        # Whatever is written, Triton takes this from the steps.
        config.model_transaction_policy.decoupled = several
    return SourceModel(model, str(directory), config, others, composing)


def _composing(repository: Path, model: str, above: tuple[str, ...], file: str) -> SourceModel:
    """Read a model that the last one of `above` executes, whose configuration is `file`."""
    if model in above:
        raise InputError(f"executes itself: {' -> '.join((*above, model))}", file=file)
    try:
        found = _read(repository, model, above)
    except InputError as error:
        raise InputError(f"executes {model!r}, and {error}", file=file) from None
    if found.config.HasField("sequence_batching"):
        raise InputError(
            f"executes {model!r}, which keeps state between requests (sequence_batching): no time of the "
            "whole follows; plan the models apart and let the client call them one after another",
            file=file,
        )
    return found


def _config(directory: Path) -> ModelConfig:
    """Return the configuration that Triton completed, else the written one."""
    file = str(directory / CONFIG_NAME)
    written = read_written(directory)
    text = read_completed(directory)
    if text is None:
        if written is not None:
            return written
        raise InputError(
            "is missing, and Triton has not completed it yet: `ctl init`, `ctl profile` and `ctl apply` have "
            "it completed; or write the file",
            file=file,
        )
    completed = parse_config(text, file)
    if written is None and not is_complete(completed):
        raise InputError(
            "is missing, and Triton cannot tell the model's inputs and outputs from its files; write it",
            file=file,
        )
    return completed
