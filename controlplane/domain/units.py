"""Limits of numbers and names as annotations, and the one check of them; every message names the field."""

from __future__ import annotations

import functools
import math
import re
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MinLen, Predicate

from controlplane.domain.errors import InputError

MILLIS_PER_SECOND = 1000.0
MICROS_PER_MILLI = 1000.0
LARGEST = 1e9
"""The largest rate or time. Above it a number is a typing error, and products overflow."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def spoken(value: float) -> str:
    """Format a share or rate with at most two decimals (below 0.01, significant digits)."""
    if 0 < abs(value) < 0.01:
        return f"{value:.2g}"
    return f"{value:.2f}".rstrip("0").rstrip(".")


def finite(value: float, field: str) -> float:
    """Return `value`. Raises InputError where it is NaN or infinite."""
    if not math.isfinite(value):
        raise InputError(f"must be a finite number, not {value}", field=field)
    return value


def positive(value: float, field: str) -> float:
    """Return `value`. Raises InputError where it is not above zero."""
    if finite(value, field) <= 0:
        raise InputError(f"must be greater than 0, not {value:g}", field=field)
    return value


def non_negative(value: float, field: str) -> float:
    """Return `value`. Raises InputError where it is below zero."""
    if finite(value, field) < 0:
        raise InputError(f"must not be negative, not {value:g}", field=field)
    return value


def safe_name(value: str, field: str | None = None) -> str:
    """Return `value`. Raises InputError where it cannot be a folder, a label and a URL segment."""
    if not _NAME.fullmatch(value) or ".." in value:
        raise InputError(
            f"{value!r} is not a valid name: use letters, digits, '.', '_' and '-', starting with a letter "
            "or digit, without '..' and at most 128 long",
            field=field,
        )
    return value


Name = Annotated[str, Predicate(safe_name)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Ge(0), Le(1)]
Percent = Annotated[float, Gt(0), Le(100)]
Amount = Annotated[float, Gt(0), Le(LARGEST)]
"""A rate or a time that a user gives."""
Count = Annotated[int, Ge(1)]


SPARSE = {"sparse": True}
"""The metadata of a field that a file leaves out where it has its default."""


class Checked:
    """Base of a dataclass whose fields are within their annotated limits; raises InputError for the first."""

    __slots__ = ()

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for field, limits in _limits(kind):
            value = getattr(self, field)
            for limit in limits if value is not None else ():
                problem = broken(limit, value)
                if problem is not None:
                    raise InputError(problem, field=field)


def broken(limit: Any, value: Any) -> str | None:
    """Return what is wrong with a value that breaks a limit of an annotation; None where it keeps it.

    Raises InputError for a predicate that does.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return f"must be a finite number, not {value}"
    match limit:
        case Gt(bound) if not value > bound:
            return f"must be greater than {bound:g}, not {value:g}"
        case Ge(bound) if not value >= bound:
            return f"must be at least {bound:g}, not {value:g}"
        case Lt(bound) if not value < bound:
            return f"must be less than {bound:g}, not {value:g}"
        case Le(bound) if not value <= bound:
            return f"must be at most {bound:g}, not {value:g}"
        case MinLen(length) if len(value) < length:
            return f"must have at least {length} item{'' if length == 1 else 's'}, not {len(value)}"
        case Predicate(holds):
            holds(value)
    return None


@functools.cache
def _limits(kind: type) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple((field, limits) for field, hint in hints.items() if (limits := _annotations(hint)))


def _annotations(hint: Any) -> tuple[Any, ...]:
    """Return the limits of `Annotated[X, ...]` and of `Annotated[X, ...] | None`."""
    if get_origin(hint) is Annotated:
        return tuple(hint.__metadata__)
    parts = get_args(hint) if get_origin(hint) is Union else ()
    return tuple(limit for part in parts for limit in _annotations(part))
