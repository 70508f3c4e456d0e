"""Strategies by the names that `--strategy` calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module

from controlplane.domain.errors import InputError
from controlplane.planners.protocol import Strategy


def _made_by(module: str, function: str) -> Callable[[], Strategy]:
    """A function of a module that is imported at the first call: a plan pays for the strategy it uses."""

    def make() -> Strategy:
        made: Strategy = getattr(import_module(f"controlplane.planners.{module}"), function)()
        return made

    return make


STRATEGIES: Mapping[str, Callable[[], Strategy]] = {
    "joint": _made_by("joint", "strategy"),
    "igniter": _made_by("igniter", "strategy"),
    "inss": _made_by("inss.strategy", "strategy"),
    "ffd+": _made_by("ffd", "plain"),
    "ffd++": _made_by("ffd", "validated"),
}


DEFAULT = "joint"


def strategy(name: str) -> Strategy:
    """The strategy called `name`. Raises InputError, with the nearest name, where there is none."""
    make = STRATEGIES.get(name)
    if make is None:
        near = get_close_matches(name, STRATEGIES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(STRATEGIES)}"
        raise InputError(f"no strategy is called {name}; {hint}", field="strategy")
    return make()
