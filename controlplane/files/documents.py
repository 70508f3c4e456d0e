"""Reading of untrusted YAML and JSON, with errors that name file, line and field.

YAML's parser is imported only for YAML and for line numbers, which are computed only for errors: a verb that
reads no more than Trisect's own JSON files starts sooner.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from controlplane.domain.errors import InputError
from controlplane.files.reading import read_bytes

SCHEMA_VERSION = 1
_YAML_LIMIT_BYTES = 16 * 2**20
_JSON_LIMIT_BYTES = 128 * 2**20
_MOST_DIGITS = 18
"""Of a whole number in 64 bits."""

Location = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")


_NEWER = object()
"""The context of a validation that leaves out unknown keys, as `State` does."""


class Strict(BaseModel):
    """Base of every file that a user writes: no unknown key, no text where a number belongs."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, data: object, info: ValidationInfo) -> object:
        if not isinstance(data, Mapping | cls):
            raise PydanticCustomError(
                "not_a_mapping",
                "must be a mapping {keys}, not {value}",
                {"keys": _keys(cls), "value": repr(data)},
            )
        if isinstance(data, Mapping) and info.context is _NEWER:
            return {key: value for key, value in data.items() if key in cls.model_fields}
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields:
                    raise PydanticCustomError(
                        "unknown_key",
                        "unknown key{nearest}",
                        {"key": str(key), "nearest": nearest(str(key), cls.model_fields)},
                    )
        return data


class State(BaseModel):
    """Base of files that only this program writes: keys that a newer minor version added are left out.

    `schema_version` changes where an older version must not read the file.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)


def _keys(model: type[BaseModel]) -> str:
    """Describe a mapping: `{policy: hot | warm | none, count}`, with the values of enumerations."""
    shown = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        values = " | ".join(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else ""
        shown.append(f"{name}: {values}" if values else name)
    return "{" + ", ".join(shown) + "}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message: `; did you mean 'x'?`, or the known names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}" if names else ""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the reader of a dataclass; making one takes longer than to read a small file with it."""
    return TypeAdapter(kind)


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
        raise InputError(problem, file=self.file, line=self._line(location), field=_field(location))

    def parse(self, model: type[Model]) -> Model:
        """Return the content as `model`. Raises InputError with file, line and field of the first mistake."""
        return self._parse(model, None)

    def parse_newer(self, model: type[Model]) -> Model:
        """Parse like `parse`, without the keys that a newer minor version added to a `Strict` model."""
        return self._parse(model, _NEWER)

    def parse_as(self, kind: type[Value]) -> Value:
        """Return the content of a JSON file that only this program writes, as a dataclass.

        Keys that a newer minor version added are left out, as with `State`. Raises InputError.
        """
        wanted: Any = kind
        adapter: TypeAdapter[Value] = _adapter(wanted)
        # As JSON: strict reading of plain values takes no mapping for a dataclass and no list for a tuple.
        return self._checked(lambda: adapter.validate_json(self.text, strict=True))

    def _parse(self, model: type[Model], context: object) -> Model:
        return self._checked(lambda: model.model_validate(self.content, context=context))

    def _checked(self, validate: Callable[[], Value]) -> Value:
        if not isinstance(self.content, Mapping):
            self.fail("must be a mapping of keys to values at the top")
        version = self.content.get("schema_version")
        if version != SCHEMA_VERSION or isinstance(version, bool):
            found = "is missing" if version is None else f"{version!r} is not supported"
            self.fail(f"{found}; this version reads schema_version: {SCHEMA_VERSION}", ("schema_version",))
        try:
            return validate()
        except ValidationError as error:
            mistakes = error.errors(include_url=False)
        first = mistakes[0]
        location: Location = tuple(first["loc"])
        if first["type"] == "unknown_key":
            location = (*location, first["ctx"]["key"])
        more = f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
        self.fail(f"{_problem(first['type'], first['msg'], first.get('input'))}{more}", location)

    @contextmanager
    def at(self, *location: str | int) -> Iterator[None]:
        """Add this location of the file to an InputError that is raised inside."""
        try:
            yield
        except InputError as error:
            inner: Location = (error.field,) if error.field else ()
            self.fail(error.problem, (*location, *inner))

    def _line(self, location: Location) -> int | None:
        if not self.text:
            return None
        from controlplane.files import yaml_text

        return yaml_text.line_of(self.text, location)


def _field(location: Location) -> str | None:
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text or None


def _problem(kind: str, message: str, value: object) -> str:
    if kind == "missing":
        return "is missing"
    if kind in {"float_type", "int_type", "int_from_float"}:
        what = "a whole number" if kind.startswith("int") else "a number"
        shown = f"the text {value!r}" if isinstance(value, str) else repr(value)
        return f"must be {what}, not {shown}"
    if kind == "finite_number":
        return f"must be a finite number, not {value}"
    if kind == "enum":
        return f"{message.replace('Input should', 'must')}, not {value!r}"
    return message[0].lower() + message[1:] if message else kind


def read(path: Path) -> Document:
    """Read a `.json` file as JSON, any other as YAML. Raises InputError if it cannot be read or parsed."""
    file = str(path)
    is_json = path.suffix == ".json"
    text = read_text(path, _JSON_LIMIT_BYTES if is_json else _YAML_LIMIT_BYTES)
    if not text.strip():
        raise InputError("is empty", file=file)
    if is_json:
        return Document(file, text, parse_json(text, file))
    from controlplane.files import yaml_text

    return Document(file, text, yaml_text.parse(text, file))


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
