"""The table of docs/spec.md is what `ctl schema spec` says. UPDATE_GOLDEN=1 writes it anew."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from controlplane.cli.schemas import schema
from controlplane.domain.units import LARGEST

PAGE = Path(__file__).parents[2] / "docs" / "spec.md"
HEAD = "| field | value [default] | meaning |\n|---|---|---|\n"
KINDS = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
LIMITS = {"exclusiveMinimum": "above", "minimum": "from", "maximum": "to"}
SPEC = schema("spec")
SPEC["properties"]["schema_version"]["description"] = "The version of this format."


def resolved(field: dict[str, Any]) -> dict[str, Any]:
    """Return a field's schema without null and references."""
    (only,) = (one for one in field.get("anyOf", [field]) if one.get("type") != "null")
    return dict(SPEC["$defs"][only["$ref"].rpartition("/")[2]]) if "$ref" in only else dict(only)


def values(of: dict[str, Any]) -> str:
    """Return the values of a field in words."""
    if "enum" in of or "const" in of:
        return ", ".join(map(str, of.get("enum", [of.get("const")])))
    if of["type"] == "array":
        inner = resolved(of["items"])
        return "list" if inner["type"] == "object" else f"list of {values(inner)}"
    if of["type"] == "object":
        return f"mapping of {values(of['additionalProperties'])}" if of["additionalProperties"] else "mapping"
    limits = (f"{word} {of[key]:g}" for key, word in LIMITS.items() if of.get(key, LARGEST) != LARGEST)
    return " ".join((KINDS[of["type"]], *limits))


def rows(record: dict[str, Any], within: str = "") -> Iterator[str]:
    for name, field in record["properties"].items():
        of, default = resolved(field), field.get("default")
        default = None if isinstance(default, dict) else default
        value = values(of)
        if name in record.get("required", ()):
            value = f"{value}, required"
        elif isinstance(default, bool | float | int) or default:
            value = f"{value} [{str(default).lower().removesuffix('.0')}]"
        yield f"| `{within}{name}` | {value} | {' '.join(field['description'].split())} |\n"
        inner = resolved(of["items"]) if of["type"] == "array" else of
        many = "" if inner is of else "[]"
        yield from rows(inner, f"{within}{name}{many}.") if "properties" in inner else ()


def test_the_table_of_the_page_is_what_the_schema_says_with_a_meaning_of_each_field() -> None:
    before, _, below = PAGE.read_text().partition(HEAD)
    page = "".join((before, HEAD, *rows(SPEC), "\n", below.partition("\n\n")[2]))
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page
