"""Strategies by the names that `--strategy` calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from controlplane.domain.errors import InputError
from controlplane.planners import ffd, igniter, joint
from controlplane.planners.inss import strategy as inss
from controlplane.planners.protocol import Strategy

STRATEGIES: Mapping[str, Callable[[], Strategy]] = {
    "joint": joint.strategy,
    "igniter": igniter.strategy,
    "inss": inss.strategy,
    "ffd+": ffd.plain,
    "ffd++": ffd.validated,
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
