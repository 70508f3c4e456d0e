"""Checks on numbers that carry a unit in their name; every message names the field."""

from __future__ import annotations

import math
import re

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


def percent(value: float, field: str) -> float:
    """Return `value`. Raises InputError where it is outside (0, 100]."""
    if not 0 < finite(value, field) <= 100:
        raise InputError(f"must be above 0 and at most 100, not {value:g}", field=field)
    return value


def at_most(value: float, largest: float, field: str) -> float:
    """Return `value`. Raises InputError where it is above `largest`."""
    if value > largest:
        raise InputError(f"must be at most {largest:g}, not {value:g}", field=field)
    return value


def at_least_one(value: int, field: str) -> int:
    """Return `value`. Raises InputError where it is below 1."""
    if value < 1:
        raise InputError(f"must be at least 1, not {value}", field=field)
    return value


def safe_name(value: str, field: str) -> str:
    """Return `value`. Raises InputError where it cannot be a folder, a label and a URL segment."""
    if not _NAME.fullmatch(value) or ".." in value:
        raise InputError(
            f"{value!r} is not a valid name: use letters, digits, '.', '_' and '-', starting with a letter "
            "or digit, without '..' and at most 128 long",
            field=field,
        )
    return value
