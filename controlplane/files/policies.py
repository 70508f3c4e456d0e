"""Files of trained policies: the weights as arrays, with their origin; and the built-in policy."""

from __future__ import annotations

import functools
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources
from pathlib import Path

import numpy as np

from controlplane.domain.errors import InputError
from controlplane.files.documents import SCHEMA_VERSION
from controlplane.files.reading import read_bytes
from controlplane.files.writing import write_bytes
from controlplane.papers.inss.policy import Weights

SUFFIX = ".npz"
BUILT_IN = "inss_policy.npz"
_ABOUT = "about"


@functools.cache
def built_in_policy() -> Weights:
    """Return the policy of the package; its file says how it was trained."""
    return _read(resources.files("controlplane.files.catalogue").joinpath(BUILT_IN).read_bytes(), BUILT_IN)[0]


def read_policy(path: Path) -> tuple[Weights, Mapping[str, object]]:
    """Return the weights and the `about` of `write_policy`. Raises InputError naming the file."""
    if not path.exists():
        raise InputError("no such file; `ctl train` makes one", file=str(path))
    return _read(read_bytes(path), str(path))


def write_policy(path: Path, weights: Weights, about: Mapping[str, object]) -> None:
    """Replace a policy's file in one step; `about` is stored with the weights. Raises EngineError."""
    text = json.dumps({"schema_version": SCHEMA_VERSION, **about}, allow_nan=False)
    stream = io.BytesIO()
    np.savez_compressed(stream, **asdict(weights), **{_ABOUT: np.frombuffer(text.encode(), dtype=np.uint8)})
    write_bytes(path, stream.getvalue())


def _read(raw: bytes, file: str) -> tuple[Weights, Mapping[str, object]]:
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
            kept = {name: arrays[name] for name in arrays.files}
        about = json.loads(kept.pop(_ABOUT).tobytes())
        if about.get("schema_version") != SCHEMA_VERSION:
            raise InputError(f"this version reads schema_version: {SCHEMA_VERSION}", file=file)
        return Weights.of(kept), about
    except InputError as error:
        raise InputError(error.problem, file=file, field=error.field) from None
    except (OSError, EOFError, ValueError, KeyError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError("is not a policy of `ctl train`", file=file) from error
