"""Reading of untrusted YAML and JSON, with errors that name file, line and field.

YAML's parser is imported only for YAML and for line numbers, which are computed only for errors: a verb that
reads no more than Trisect's own JSON files starts sooner.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, make_dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import GenericAlias
from typing import Any, NoReturn, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from controlplane.domain.errors import InputError
from controlplane.files.mistakes import Location, field_of, first, named
from controlplane.files.reading import exists, read_bytes

SCHEMA_VERSION = 1
_YAML_LIMIT_BYTES = 16 * 2**20
_JSON_LIMIT_BYTES = 128 * 2**20
_MOST_DIGITS = 19
"""Of a whole number in 64 bits, such as a time in nanoseconds."""

_SCALARS = frozenset({float, int, str, bool, type(None)})

Value = TypeVar("Value")


@cache
def adapter(kind: Any, extra: str = "forbid") -> TypeAdapter[Any]:
    """Return the one reader of a dataclass: numbers are no text, and no unknown key where it is forbidden.

    Making one takes longer than to read a small file with it.
    """
    config = ConfigDict(extra="ignore" if extra == "ignore" else "forbid", allow_inf_nan=False)
    # The union with None takes the configuration, which pydantic does not take for a dataclass alone.
    return TypeAdapter(kind | None, config=config)


@dataclass(frozen=True, slots=True)
class Document:
    """A file's text and its content as plain values; the text is empty where the content is no file's."""

    file: str
    text: str
    content: Any

    @property
    def sha256(self) -> str:
        """The hash of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def fail(self, problem: str, location: Location = ()) -> NoReturn:
        """Raise InputError for the value at `location`."""
        raise InputError(problem, file=self.file, line=self._line(location), field=field_of(location))

    def parse(self, kind: type[Value], *, newer: bool = False, numbers_are_names: bool = False) -> Value:
        """Return the content as a dataclass. Raises InputError, with the place, for the first mistake.

        `newer` leaves out unknown keys, which a newer minor version may have added: for files that only this
        program writes. `schema_version` changes where an older version must not read the file.
        `numbers_are_names`: YAML reads an unquoted `name: 1` as a number, and it counts as text where text
        belongs.
        """
        if not isinstance(self.content, Mapping):
            self.fail("must be a mapping of keys to values at the top")
        version = self.content.get("schema_version")
        if version != SCHEMA_VERSION or isinstance(version, bool):
            found = "is missing" if version is None else f"{version!r} is not supported"
            self.fail(f"{found}; this version reads schema_version: {SCHEMA_VERSION}", ("schema_version",))
        content = {key: value for key, value in self.content.items() if key != "schema_version"}
        wanted: Any = kind
        reader = adapter(wanted, "ignore" if newer else "forbid")
        while True:
            # As JSON: strict reading of plain values takes no mapping as a dataclass, no list as a tuple.
            text = json.dumps(content, default=_unreadable)
            try:
                value: Value = reader.validate_json(text, strict=True)
            except ValidationError as error:
                mistakes: Any = error.errors(include_url=False)
            else:
                return value
            content = json.loads(text)
            if not (numbers_are_names and named(content, mistakes)):
                location, problem = first(kind, mistakes)
                self.fail(problem, location)

    def _line(self, location: Location) -> int | None:
        if not self.text:
            return None
        from controlplane.files.documents import yaml_text

        return yaml_text.line_of(self.text, location)


def _unreadable(value: object) -> list[str]:
    """Return what no field takes, for the dates and sets that YAML has and JSON has not."""
    return [str(value)]


def read(path: Path) -> Document:
    """Read a `.json` file as JSON, any other as YAML. Raises InputError if it cannot be read or parsed."""
    file = str(path)
    is_json = path.suffix == ".json"
    text = read_text(path, _JSON_LIMIT_BYTES if is_json else _YAML_LIMIT_BYTES)
    if not text.strip():
        raise InputError("is empty", file=file)
    return Document(file, text, parse_json(text, file)) if is_json else parsed_yaml(file, text)


def parsed_yaml(file: str, text: str) -> Document:
    """Return the document of a text in YAML, which JSON is too. Raises InputError naming `file`."""
    from controlplane.files.documents import yaml_text

    return Document(file, text, yaml_text.parse(text, file))


def read_state(path: Path, kind: type[Value]) -> Value | None:
    """Read a file that only this program writes; None without one. Raises InputError where it is broken."""
    return read(path).parse(kind, newer=True) if exists(path) else None


def read_listed(path: Path, key: str, kind: type[Value]) -> tuple[Value, ...]:
    """Return the records that a file of this program lists under its one `key`; none without a file.

    Raises InputError where it is broken.
    """
    wanted: Any = kind
    return getattr(read_state(path, _listing(key, wanted)), key, ())


@cache
def _listing(key: str, kind: Any) -> Any:
    return make_dataclass("Listing", [(key, GenericAlias(tuple, (kind, ...)))])


def read_text(path: Path, limit_bytes: int = _JSON_LIMIT_BYTES) -> str:
    """Return a file's text. Raises InputError if it cannot be read, is too large or is not text."""
    try:
        return read_bytes(path, limit_bytes).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text (byte {error.start})", file=str(path)) from None


def parse_json(text: str, file: str) -> Any:
    """Parse JSON and refuse duplicate keys. Raises InputError naming `file`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(pairs)
        if len(built) < len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            line = next((i + 1 for i, row in enumerate(text.splitlines()) if f'"{twice}"' in row), None)
            raise InputError("duplicate key", file=file, line=line, field=twice)
        return built

    def whole(digits: str) -> float:
        # A longer one is no quantity, and neither Python nor a float could hold any: infinity is refused.
        return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)

    try:
        return json.loads(text, object_pairs_hook=unique, parse_int=whole)
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON: {error.msg}", file=file, line=error.lineno) from None
    except RecursionError:
        raise InputError("is nested too deeply", file=file) from None


def plain(value: Any) -> Any:
    """Return a value as that of JSON: a dataclass as a mapping of its fields, without `SPARSE` ones.

    JSON has no infinity and no NaN: such a value is null where the field may be None.
    """
    kind: Any = type(value)
    if kind in _SCALARS:  # most values of a profile
        return value
    if is_dataclass(value):
        return {
            name: plain(one)
            for name, default, sparse in _fields(kind)
            if (one := _finite(getattr(value, name), default)) != default or not sparse
        }
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.value if isinstance(value, StrEnum) else value


def _finite(value: Any, default: Any) -> Any:
    return None if default is None and isinstance(value, float) and not math.isfinite(value) else value


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    def default(field: Field[Any]) -> Any:
        return field.default if field.default_factory is MISSING else field.default_factory()

    return tuple((one.name, default(one), "sparse" in one.metadata) for one in fields(kind) if one.init)


def versioned(value: Any) -> dict[str, Any]:
    """Return a dataclass as the content of its file."""
    return {"schema_version": SCHEMA_VERSION, **plain(value)}
