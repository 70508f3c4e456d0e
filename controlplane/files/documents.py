"""Reading of untrusted YAML and JSON, with errors that name the line, and writing of files in one step.

Hostile input is refused before it is parsed into objects: a size limit, no aliases (they expand without
bound), no duplicate keys, no tags but YAML's own plain ones. Line numbers are computed only for errors.
"""

from __future__ import annotations

import difflib
import errno
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from controlplane.domain.errors import EngineError, InputError

SCHEMA_VERSION = 1
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_BLOCK_BYTES = 512
"""The unit of `st_blocks`."""

_YAML_LIMIT_BYTES = 16 * 2**20
_PLAIN = json.JSONEncoder(allow_nan=False)
_JSON_LIMIT_BYTES = 128 * 2**20
_DEPTH_LIMIT = 64

Location = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


class Strict(BaseModel):
    """Base of every file's model: no unknown key, no text where a number belongs."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, data: object) -> object:
        if not isinstance(data, Mapping | cls):
            raise PydanticCustomError(
                "not_a_mapping",
                "must be a mapping {keys}, not {value}",
                {"keys": _keys(cls), "value": repr(data)},
            )
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

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


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


class _Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """The safe loader, with YAML 1.2's floats (1e3 is a number) and without duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"duplicate key {key.value!r}", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        built: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return built


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


@dataclass(frozen=True, slots=True)
class Document:
    """A file's text and its content as plain values."""

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
        if not isinstance(self.content, Mapping):
            self.fail("must be a mapping of keys to values at the top")
        version = self.content.get("schema_version")
        if version != SCHEMA_VERSION or isinstance(version, bool):
            found = "is missing" if version is None else f"{version!r} is not supported"
            self.fail(f"{found}; this version reads schema_version: {SCHEMA_VERSION}", ("schema_version",))
        try:
            return model.model_validate(self.content)
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
        try:
            node = yaml.compose(self.text, Loader=_Loader)
        except yaml.YAMLError:
            return None
        if node is None:
            return 1
        line: int = node.start_mark.line + 1
        for step in location:
            found = _child(node, step)
            if found is None:
                break
            key, node = found
            line = key.start_mark.line + 1
        return line


def _child(node: yaml.Node, step: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        return next(((k, v) for k, v in node.value if k.value == str(step)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step]
    return None


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
    return Document(file, text, parse_json(text, file) if is_json else _yaml(text, file))


def read_text(path: Path, limit_bytes: int = _JSON_LIMIT_BYTES) -> str:
    """Return a file's text. Raises InputError if it cannot be read, is too large or is not text."""
    file = str(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(limit_bytes + 1)
    except FileNotFoundError:
        raise InputError("no such file", file=file) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=file) from None
    if len(raw) > limit_bytes:
        raise InputError(f"is larger than {limit_bytes // 2**20} MiB", file=file)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text (byte {error.start})", file=file) from None


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

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON: {error.msg}", file=file, line=error.lineno) from None
    except RecursionError:
        raise InputError("is nested too deeply", file=file) from None


def _yaml(text: str, file: str) -> Any:
    try:
        _refuse_hostile(text, file)
        return yaml.load(text, Loader=_Loader)
    except InputError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        raise InputError(f"is not YAML: {error.problem or error.context}", file=file, line=line) from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"is not YAML: {error}", file=file) from None


def _refuse_hostile(text: str, file: str) -> None:
    """Check the parser's events before objects are built: they need no recursion and expand no alias."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark else None
        if isinstance(event, yaml.AliasEvent):
            raise InputError("aliases are not accepted; write the value out", file=file, line=line)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEPTH_LIMIT:
                raise InputError("is nested too deeply", file=file, line=line)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step. Raises EngineError where the disk refuses."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file in one step: the old one stays whole until the new one is on disk.

    Raises EngineError where the disk refuses.
    """
    _replace(path, content, to_disk=True)


def write_vital(path: Path, text: str) -> None:
    """Write like `write_text`, but on a full disk overwrite the file in place if its blocks suffice.

    For the files of a redirect, which must not fail on a full disk.
    """
    _replace_or_overwrite(path, text, to_disk=True)


def write_derived(path: Path, text: str) -> None:
    """Write like `write_vital`, but do not wait for the disk: a power cut may lose the change.

    For files that can be derived again. The wait would be most of a redirect's time.
    """
    _replace_or_overwrite(path, text, to_disk=False)


def _replace_or_overwrite(path: Path, text: str, *, to_disk: bool) -> None:
    try:
        _replace(path, text.encode(), to_disk=to_disk)
    except EngineError as error:
        full = isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL
        if not full or not _overwrite(path, text.encode()):
            raise


def _overwrite(path: Path, content: bytes) -> bool:
    """Overwrite a file within its allocated blocks; return False if they do not suffice."""
    try:
        with path.open("r+b") as stream:
            if len(content) > os.fstat(stream.fileno()).st_blocks * _BLOCK_BYTES:
                return False
            stream.write(content)
            stream.truncate()
        return True
    except OSError:
        return False


def _replace(path: Path, content: bytes, *, to_disk: bool) -> None:
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            if to_disk:
                stream.flush()
                os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise EngineError(
            f"{path}: cannot be written: {error.strerror}; the old file is unchanged"
        ) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def write_json(path: Path, content: object) -> None:
    """Replace a JSON file in one step. NaN and infinity raise ValueError."""
    write_text(path, to_json(content))


def to_json(content: object) -> str:
    """Return indented JSON text with a newline at the end. Raises ValueError for NaN and infinity."""
    return _indented(content, "\n") + "\n"


def _indented(value: object, newline: str) -> str:
    """Return what `json.dumps(value, indent=2, allow_nan=False)` does, which is slow with an indent."""
    inner = newline + "  "
    if isinstance(value, dict) and value:
        rows = [f"{_key(key)}: {_indented(its, inner)}" for key, its in value.items()]
        return "{" + inner + f",{inner}".join(rows) + newline + "}"
    if isinstance(value, list | tuple) and value:
        return "[" + inner + f",{inner}".join(_indented(one, inner) for one in value) + newline + "]"
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return repr(value)
    return _PLAIN.encode(value)


def _key(key: object) -> str:
    text = _PLAIN.encode(key)
    return text if isinstance(key, str) else f'"{text}"'


def finite_or_none(value: float | None) -> float | None:
    """Return None for infinity and NaN, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None
