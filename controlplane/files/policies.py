"""Files of `ctl train`: a policy's weights as arrays, with their origin, and its learning curve."""

from __future__ import annotations

import csv
import functools
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from controlplane.domain.errors import InputError
from controlplane.files.documents import SCHEMA_VERSION
from controlplane.files.reading import read_bytes
from controlplane.files.writing import write_bytes, write_text
from controlplane.papers.inss.policy import Weights

if TYPE_CHECKING:
    from controlplane.papers.inss.training.curve import Check

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


def write_curve(path: Path, curve: Sequence[Check]) -> None:
    """Replace the file in one step. Raises EngineError where the disk refuses."""
    from controlplane.papers.inss.training.curve import Check

    text = io.StringIO()
    table = csv.DictWriter(text, [f.name for f in fields(Check)], lineterminator="\n")
    table.writeheader()
    table.writerows({name: f"{value:.6g}" for name, value in asdict(check).items()} for check in curve)
    write_text(path, text.getvalue())
