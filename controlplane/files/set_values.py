"""Single values of a record, as `--set KEY=VALUE` gives them: checked as a file with the record would be."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from annotated_types import Ge, Le

from controlplane.domain.errors import InputError
from controlplane.files.documents import SCHEMA_VERSION, Document, plain
from controlplane.files.mistakes import bare, hint_at, is_choice

HELP = "help"
"""In place of KEY=VALUE: list the keys."""

Value = TypeVar("Value")


class Key(NamedTuple):
    """A key that may be set: its place in the record, its type in words, and its default."""

    path: str
    kind: str
    default: str


def with_values(before: Value, given: Sequence[str]) -> Value:
    """Return a record with the given values, each KEY=VALUE. Raises InputError that names the key."""
    content, seen = plain(before), list[str]()
    for text in given:
        path, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"{text!r} is not KEY=VALUE; `--set {HELP}` lists the keys", field="--set")
        if any(f"{earlier}.".startswith(f"{path}.") for earlier in seen):
            raise InputError("is given twice; give a list as KEY=A,B or as JSON", field=path)
        seen.append(path)
        *outer, last = path.split(".")
        inner = content
        for step in outer:
            if not isinstance(inner.get(step), dict):
                inner[step] = {}
            inner = inner[step]
        inner[last] = _parsed(hint_at(type(before), path.split(".")), value)
    document = Document("--set", "", {"schema_version": SCHEMA_VERSION, **content})
    return document.parse(type(before), numbers_are_names=True)


def keys(kind: Any, within: str = "") -> Iterator[Key]:
    """Return the keys of a record, those of inner records by their paths."""
    hints = get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        hint, path = hints[one.name], f"{within}{one.name}"
        inner, default = bare(hint), "" if one.default in (None, MISSING, ()) else plain(one.default)
        if is_dataclass(inner):
            if within and one.default is None and all(f.default is not MISSING for f in fields(inner)):
                yield Key(path, "{} | null", "null")
            yield from keys(inner, f"{path}.")
        elif get_origin(inner) is Mapping:
            yield Key(f"{path}.{{NAME}}", "text", "")
        else:
            yield Key(path, _words(hint), json.dumps(default) if isinstance(default, bool) else str(default))


def _parsed(hint: Any, text: str) -> Any:
    kind = bare(hint)
    if text == "null" and NoneType in get_args(hint):
        return None
    if get_origin(kind) is tuple and not text.startswith("["):  # JSON, for values with a comma
        return [_parsed(get_args(kind)[0], part) for part in text.split(",") if part]
    if kind is str or _is_chosen(kind):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_chosen(kind: Any) -> bool:
    return get_origin(kind) is Literal or is_choice(kind)


def _words(hint: Any) -> str:
    kind = bare(hint)
    if get_origin(kind) is tuple:
        return f"{_words(get_args(kind)[0])},..."
    if _is_chosen(kind):
        return " | ".join(map(str, get_args(kind) or kind))
    limits = [limit for part in (hint, *get_args(hint)) for limit in getattr(part, "__metadata__", ())]
    low = next((f" from {limit.ge}" for limit in limits if isinstance(limit, Ge)), "")
    high = next((f" to {limit.le}" for limit in limits if isinstance(limit, Le)), "")
    names = {bool: "true | false", int: "whole number", float: "number", str: "text"}
    return f"{names.get(kind, 'text')}{low}{high}"
