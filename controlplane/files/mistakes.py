"""The first mistake that the validation of a document found, in words, and its place."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MinLen

from controlplane.domain.units import broken

Location = tuple[str | int, ...]
Mistakes = list[Mapping[str, Any]]
"""As pydantic lists them."""

_LIMITS = {"greater_than": Gt, "greater_than_equal": Ge, "less_than": Lt, "less_than_equal": Le}
_KINDS = {
    "float_type": "a number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "finite_number": "a finite number",
    "tuple_type": "a list",
    "dict_type": "a mapping",
}
_UNKNOWN = "unexpected_keyword_argument"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message: `; did you mean 'x'?`, or the known names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}" if names else ""


def field_of(location: Location) -> str | None:
    """Return a place as `a[1].b`; None for the whole document."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text or None


def first(kind: Any, mistakes: Mistakes) -> tuple[Location, str]:
    """Return the place of the first mistake of a `kind`'s document, and what is wrong there.

    An unknown key comes before a missing one of the same mapping, since it may be that one misspelt.
    """
    # A list with a wrong item is not short of one.
    own = [m for m in mistakes if m["type"] != "too_short" or not m["input"]]
    beside = (m for m in own if m["type"] == _UNKNOWN and m["loc"][:-1] == own[0]["loc"][:-1])
    mistake = next(beside, own[0])
    location: Location = mistake["loc"]
    if mistake["type"] == "value_error":
        steps = re.findall(r"[^.\[\]]+", getattr(mistake["ctx"]["error"], "field", None) or "")
        location = (*location, *(int(step) if step.isdigit() else step for step in steps))
    more = f" (and {len(own) - 1} more)" if len(own) > 1 else ""
    return location, f"{_problem(kind, mistake)}{more}"


def _problem(kind: Any, mistake: Mapping[str, Any]) -> str:
    location, value, about = mistake["loc"], mistake["input"], mistake.get("ctx", {})
    match mistake["type"]:
        case "missing":
            return "is missing"
        case "unexpected_keyword_argument":
            return f"unknown key{nearest(str(location[-1]), _keys(bare(hint_at(kind, location[:-1]))))}"
        case "dataclass_type":
            keys = ", ".join(_keys(bare(hint_at(kind, location))).values())
            return f"must be a mapping {{{keys}}}, not {value!r}"
        case "value_error":
            return str(getattr(about["error"], "problem", about["error"]))
        case "enum":
            return f"{mistake['msg'].replace('Input should', 'must')}, not {value!r}"
        case "too_short":
            return str(broken(MinLen(about["min_length"]), value))
        case wrong if wrong in _LIMITS:
            return str(broken(_LIMITS[wrong](*about.values()), value))
        case wrong if wrong in _KINDS:
            return f"must be {_KINDS[wrong]}, not {'the text ' if isinstance(value, str) else ''}{value!r}"
    message: str = mistake["msg"]
    return message[0].lower() + message[1:]


def bare(hint: Any) -> Any:
    """Return a type without its limits and without None."""
    if get_origin(hint) is Annotated:
        return bare(get_args(hint)[0])
    if NoneType in get_args(hint):
        return bare(next(part for part in get_args(hint) if part is not NoneType))
    return hint


def hint_at(kind: Any, location: Iterable[str | int]) -> Any:
    """Return the type at a place of a `kind`'s document; None where it has no such place."""
    for step in location:
        kind = bare(kind)
        if is_dataclass(kind):
            kind = get_type_hints(kind, include_extras=True).get(str(step))
        else:
            parts = get_args(kind)
            kind = parts[-1 if isinstance(step, str) else 0] if parts else None
    return kind


def _keys(kind: Any) -> dict[str, str]:
    """Return the keys of a dataclass's mapping as a message shows them: `policy: hot | warm | none`."""
    hints = get_type_hints(kind)
    choices = {name: " | ".join(hint) for name, hint in hints.items() if is_choice(hint)}
    names = [field.name for field in fields(kind) if field.init]
    return {name: f"{name}: {choices[name]}" if name in choices else name for name in names}


def is_choice(hint: Any) -> bool:
    """Return whether a type is an enumeration of texts."""
    return isinstance(hint, type) and issubclass(hint, StrEnum)


def named(content: Any, mistakes: Mistakes) -> bool:
    """Put text in place of whole numbers where text belongs; return whether there were any."""
    wrong = [m for m in mistakes if m["type"] == "string_type" and type(m["input"]) is int]
    for mistake in wrong:
        inner = content
        *outer, last = mistake["loc"]
        for step in outer:
            inner = inner[step]
        inner[last] = str(mistake["input"])
    return bool(wrong)
