"""Functions by name: the product's from a table, those of other distributions by their entry points.

Nothing is imported before it is asked for by name, and entry points are read where a name is not in the
table: a command pays for what it uses.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Named:
    """A function of a module, and the names of its options; None: all that it takes.

    `variant`: its first argument, where it makes several.
    """

    module: str
    function: str
    options: tuple[str, ...] | None = ()
    variant: str | None = None

    def load(self) -> Callable[..., Any]:
        """Import the function."""
        function: Callable[..., Any] = getattr(import_module(self.module), self.function)
        return function if self.variant is None else partial(function, self.variant)

    def takes(self, option: str) -> bool:
        """Whether the function has this option."""
        known = inspect.signature(self.load()).parameters if self.options is None else self.options
        return option in known


class Registry(Mapping[str, Named]):
    """`ours` by name, then what is installed in the entry point group `group`; iterates over ours alone."""

    def __init__(self, group: str, ours: Mapping[str, Named]) -> None:
        self._group = group
        self._ours = ours

    def __getitem__(self, name: str) -> Named:
        found = self._ours.get(name)
        return self.installed()[name] if found is None else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._ours)

    def __len__(self) -> int:
        return len(self._ours)

    def installed(self) -> dict[str, Named]:
        """The functions of other distributions; none takes the name of one of ours."""
        from importlib.metadata import entry_points  # slow, and most commands need none

        return {
            point.name: Named(point.module, point.attr, None)
            for point in entry_points(group=self._group)
            if point.name not in self._ours
        }

    def names(self) -> list[str]:
        """All names, ours first."""
        return [*self._ours, *self.installed()]

    def hint(self, name: str) -> str:
        """The nearest name to one that is unknown, else all of them."""
        names = self.names()
        near = get_close_matches(name, names, n=1)
        return f"did you mean {near[0]}?" if near else f"one of {', '.join(names)}"
