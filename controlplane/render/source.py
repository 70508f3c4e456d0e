"""Reading of a source model's directory: the only effect of rendering."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from controlplane.domain import units
from controlplane.domain.errors import InputError
from controlplane.render.config import check_servable, parse_config

CONFIG_NAME = "config.pbtxt"


@dataclass(frozen=True, slots=True)
class SourceModel:
    """A model of the user's repository. `others` names everything in its folder except config.pbtxt."""

    name: str
    directory: str
    config: ModelConfig
    others: tuple[str, ...]


def source_models(repository: Path) -> tuple[str, ...]:
    """Return the names of all models in a repository, sorted: folders with a config.pbtxt.

    Raises InputError if the repository does not exist.
    """
    if not repository.is_dir():
        raise InputError(
            "is not a directory; name the model repository with --repository", file=str(repository)
        )
    return tuple(sorted(p.parent.name for p in repository.glob(f"*/{CONFIG_NAME}")))


def read_source(repository: Path, model: str) -> SourceModel:
    """Read one model of a source repository.

    Raises InputError, naming file and line, for an invalid name, a missing folder, configuration or version,
    a broken configuration, and a model that cannot be served in a partition.
    """
    units.safe_name(model, "model")
    directory = repository.resolve() / model
    if not directory.is_dir():
        known = source_models(repository)
        close = difflib.get_close_matches(model, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known) or 'none'}"
        raise InputError(f"there is no such model directory; {hint}", file=str(directory), field="model")
    file = directory / CONFIG_NAME
    try:
        text = file.read_text()
    except FileNotFoundError:
        raise InputError(
            "is missing; every model's folder needs one. Write it, or, if Triton completes the configuration "
            "by itself, save the answer of GET /v2/models/MODEL/config",
            file=str(file),
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", file=str(file)) from None
    config = parse_config(text, str(file))
    check_servable(config, str(file))
    others = tuple(sorted(p.name for p in directory.iterdir() if _is_part(p)))
    if not any(name.isdigit() and (directory / name).is_dir() for name in others):
        raise InputError(
            "has no version: put the model's files into a folder named 1 inside", file=str(directory)
        )
    return SourceModel(model, str(directory), config, others)


def _is_part(path: Path) -> bool:
    return path.name != CONFIG_NAME and not path.name.startswith(".")
