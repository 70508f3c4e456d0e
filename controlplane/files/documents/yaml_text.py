"""Parsing of untrusted YAML, and the lines of its values.

Hostile input is refused before it is parsed into objects: no aliases (they expand without bound), no
duplicate keys, no tags but YAML's own plain ones, a limit on nesting. JSON is YAML, so `line_of` serves both.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from controlplane.domain.errors import InputError

_DEPTH_LIMIT = 64
_LARGEST_WHOLE = 2**63


class _Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """The safe loader, with YAML 1.2's floats (1e3 is a number) and without duplicate keys."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            built = super().construct_object(node, deep=deep)
        except (ValueError, OverflowError) as error:  # a date of the 99th month, too long a number
            raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from None
        if isinstance(built, int) and abs(built) > _LARGEST_WHOLE:  # 0xfff... has no end of digits
            raise yaml.MarkedYAMLError(problem="the number is too large", problem_mark=node.start_mark)
        return built

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
        if not all(key is None or isinstance(key, str | int | float) for key in built):
            raise yaml.MarkedYAMLError(problem="a key must be text", problem_mark=node.start_mark)
        return built


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def parse(text: str, file: str) -> Any:
    """Return the text's content as plain values. Raises InputError naming `file` and the line."""
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


def line_of(text: str, location: tuple[str | int, ...]) -> int | None:
    """Return the line of the value at `location`, or of the nearest one around it."""
    try:
        node = yaml.compose(text, Loader=_Loader)
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
