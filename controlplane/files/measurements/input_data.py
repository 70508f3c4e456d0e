"""Real inputs of a model, from a file in perf_analyzer's JSON form (its `--input-data`).

    {"data": [{"IMAGE": {"content": [0.1, 0.2, ...], "shape": [3, 224, 224]}, "NAME": ["cat"]},
              {"IMAGE": {"b64": "zczMPQ=="}, "NAME": {"b64": "AwAAAGRvZw=="}}]}

Each entry of `data` is one inference without its batch dimension, with every input that is not optional: a
flat list in row-major order, the same as `content` beside a `shape`, or little-endian bytes as `b64` (for
BYTES each element after its length in four bytes). A list of entries, perf_analyzer's form for sequences,
counts as its entries in turn. `validation_data` is allowed and not read: a profile compares no answers.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from controlplane.domain.errors import InputError
from controlplane.domain.tensors import Sample, Shapes, TensorSpec, TensorValue
from controlplane.files.documents import Document, parse_json, read_text
from controlplane.files.mistakes import Location, nearest

_NUMPY = {
    **{f"UINT{bits}": np.dtype(f"uint{bits}").type for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"int{bits}").type for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"float{bits}").type for bits in (16, 32, 64)},
    "BOOL": np.bool_,
}
_BF16_BYTES = 2
_LENGTH = struct.Struct("<I")
_TOP_KEYS = ("data", "validation_data")
_VALUE_KEYS = ("b64", "content", "shape")


def read_sequences(
    path: Path, inputs: Sequence[TensorSpec], shapes: Shapes
) -> tuple[tuple[Sample, ...], ...]:
    """Return one sample for each entry of the file, by sequence: each inner list is one.

    Entries outside inner lists are one sequence. `shapes` is for entries without a shape. Raises InputError
    with file, line and field of the first mistake.
    """
    document = _document(path)
    if not isinstance(document.content, Mapping):
        document.fail('must be an object: {"data": [...]}')
    for key in document.content:
        if key not in _TOP_KEYS:
            document.fail(f"unknown key{nearest(key, _TOP_KEYS)}", (key,))
    entries = document.content.get("data")
    if not isinstance(entries, list) or not entries:
        document.fail("must be a list of at least one entry", ("data",))
    lists = [i for i, entry in enumerate(entries) if isinstance(entry, list)]
    if lists and len(lists) < len(entries):
        document.fail("mixes entries and lists of entries", ("data",))
    sequences: dict[Location, list[Any]] = {("data", i): entries[i] for i in lists}
    found = []
    for location, steps in (sequences or {("data",): entries}).items():
        sequence = [_sample(document, (*location, i), steps[i], inputs, shapes) for i in range(len(steps))]
        if sequence:
            found.append(tuple(sequence))
    return tuple(found)


def _document(path: Path) -> Document:
    file = str(path)
    if path.is_dir():
        raise InputError(
            "is a directory; only perf_analyzer's JSON file is supported: write the tensors as "
            '{"data": [{"INPUT": {"b64": "..."}}]}',
            file=file,
        )
    if path.is_file() and zipfile.is_zipfile(path):
        raise InputError("is a zip archive; unpack it and name the JSON file inside", file=file)
    text = read_text(path)
    return Document(file, text, parse_json(text, file))


def _sample(
    document: Document, location: Location, entry: Any, inputs: Sequence[TensorSpec], shapes: Shapes
) -> Sample:
    if not isinstance(entry, Mapping):
        document.fail("must be an object of inputs", location)
    names = [spec.name for spec in inputs]
    for name in entry:
        if name not in names:
            document.fail(f"is not an input of the model{nearest(name, names)}", (*location, name))
    for spec in inputs:
        if spec.name not in entry and not spec.optional:
            document.fail(f"input {spec.name!r} is missing", location)
    return tuple(
        _Place(document, (*location, spec.name), spec).value(entry[spec.name], shapes.get(spec.name))
        for spec in inputs
        if spec.name in entry
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """The location of one input's value in the file, for errors."""

    document: Document
    location: Location
    spec: TensorSpec

    def value(self, given: object, default_shape: tuple[int, ...] | None) -> TensorValue:
        content: object = given
        shape = default_shape or self.spec.dims
        if isinstance(given, Mapping):
            for key in given:
                if key not in _VALUE_KEYS:
                    self.document.fail(f"unknown key{nearest(key, _VALUE_KEYS)}", (*self.location, key))
            shape = self._shape(given["shape"]) if "shape" in given else shape
            content = given.get("content", given)
        if any(d < 0 for d in shape):
            self._fail(
                f'its dimensions {list(self.spec.dims)} are variable: give "shape" beside "content", or '
                f"with --shape MODEL:{self.spec.name}:DIMS"
            )
        count = math.prod(shape)
        data = (
            self._binary(content, count) if isinstance(content, Mapping) else self._explicit(content, count)
        )
        return TensorValue(self.spec.name, self.spec.datatype, shape, data)

    def _shape(self, given: object) -> tuple[int, ...]:
        location = (*self.location, "shape")
        if not isinstance(given, list) or not all(type(d) is int for d in given):
            self.document.fail("must be a list of whole numbers", location)
        if not self.spec.takes(tuple(given)):
            dims = list(self.spec.dims)
            self.document.fail(
                f"{given} does not fit the input's dimensions {dims} (without the batch)", location
            )
        return tuple(given)

    def _binary(self, content: Mapping[str, Any], count: int) -> bytes:
        text = content.get("b64")
        if not isinstance(text, str):
            self._fail('must be a flat list, or {"b64": "..."}')
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            self._fail(f"is not base64: {error}")
        kind = self.spec.datatype
        if kind == "BYTES":
            found = _elements(data)
            if found is None:
                self._fail("each element of BYTES must follow its length in four bytes, little-endian")
            self._check_count(found, count)
            return data
        size = count * (_BF16_BYTES if kind == "BF16" else np.dtype(_NUMPY[kind]).itemsize)
        if len(data) != size:
            self._fail(f"holds {len(data)} bytes, and {count} x {kind} takes {size}")
        return data

    def _explicit(self, content: object, count: int) -> bytes:
        if not isinstance(content, list):
            self._fail('must be a flat list, or {"b64": "..."}')
        self._check_count(len(content), count)
        kind = self.spec.datatype
        if kind == "BYTES":
            self._check_each(content, lambda v: isinstance(v, str), "a string")
            return b"".join(_LENGTH.pack(len(e)) + e for e in (text.encode() for text in content))
        if kind == "BOOL":
            self._check_each(content, lambda v: v in (0, 1), "true or false")
            return np.array(content, np.bool_).tobytes()
        if kind == "BF16":
            self._check_each(content, _is_number, "a finite number")
            return np.array(content, "<f4").view("<u2")[1::2].tobytes()
        return self._numbers(content, np.dtype(_NUMPY[kind]))

    def _numbers(self, content: Sequence[Any], dtype: np.dtype[Any]) -> bytes:
        if dtype.kind == "f":
            self._check_each(content, _is_number, "a finite number")
            largest = float(np.finfo(dtype).max)
            self._check_each(content, lambda v: abs(v) <= largest, f"within {self.spec.datatype}'s range")
        else:
            info = np.iinfo(dtype)
            kind = f"a whole number from {info.min} to {info.max}"
            self._check_each(content, lambda v: type(v) is int and info.min <= v <= info.max, kind)
        return np.array(content, dtype.newbyteorder("<")).tobytes()

    def _check_each(self, content: Sequence[Any], good: Any, what: str) -> None:
        for i, value in enumerate(content):
            if not good(value):
                self._fail(
                    f"element {i} must be {what}, not {value!r:.60}; tensors are flat, row-major lists"
                )

    def _check_count(self, found: int, count: int) -> None:
        if found != count:
            self._fail(f"has {found} elements, and its shape takes {count}")

    def _fail(self, problem: str) -> NoReturn:
        self.document.fail(problem, self.location)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _elements(data: bytes) -> int | None:
    """Count the length-prefixed elements in these bytes; None if the last one is cut short."""
    at = count = 0
    while at + _LENGTH.size <= len(data):
        at += _LENGTH.size + int(_LENGTH.unpack_from(data, at)[0])
        count += 1
    return count if at == len(data) else None
