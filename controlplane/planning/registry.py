"""Strategies by the names that `--strategy` calls them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module

from controlplane.domain.errors import InputError
from controlplane.planning.protocol import Strategy


@dataclass(frozen=True, slots=True)
class _Entry:
    """The function that makes a strategy, and the names of its options.

    Its module is imported when the strategy is asked for: a plan pays for the one that it uses.
    """

    module: str
    function: str = "strategy"
    options: tuple[str, ...] = ()


STRATEGIES: Mapping[str, _Entry] = {
    "joint": _Entry("controlplane.planning.joint.strategy", "Joint", ("iterations", "late_binding")),
    "igniter": _Entry("controlplane.papers.igniter.igniter"),
    "inss": _Entry("controlplane.papers.inss.strategy", options=("iterations", "bda", "policy")),
    "ffd+": _Entry("controlplane.papers.igniter.first_fit", "plain"),
    "ffd++": _Entry("controlplane.papers.igniter.first_fit", "validated"),
    "gslice+": _Entry("controlplane.papers.igniter.gslice"),
    "sbp": _Entry("controlplane.papers.gpulet.strategy", "sbp", ("as_coded",)),
    "greedy-best-fit": _Entry("controlplane.papers.gpulet.strategy", "greedy_best_fit", ("as_coded",)),
    "gpulet": _Entry("controlplane.papers.gpulet.strategy", "gpulet", ("as_coded",)),
    "gpulet+int": _Entry("controlplane.papers.gpulet.strategy", "gpulet_int", ("as_coded",)),
    "gpulet-ideal": _Entry("controlplane.papers.gpulet.strategy", "gpulet_ideal", ("as_coded",)),
    "gpu-lets+": _Entry("controlplane.papers.gpulet.plus"),
    "latency-aware": _Entry("controlplane.papers.latency_aware.strategy"),
}

DEFAULT = "joint"


def strategy(name: str, **options: object) -> Strategy:
    """The strategy called `name`, with its own options; None leaves an option at its default.

    Raises InputError, with the nearest name, where there is none, and for another strategy's option.
    """
    entry = STRATEGIES.get(name)
    if entry is None:
        near = get_close_matches(name, STRATEGIES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(STRATEGIES)}"
        raise InputError(f"no strategy is called {name}; {hint}", field="strategy")
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in entry.options:
            others = " or ".join(n for n, other in STRATEGIES.items() if option in other.options)
            raise InputError(
                f"is for --strategy {others} alone, not for {name}", field=f"--{option.replace('_', '-')}"
            )
    module = import_module(entry.module)
    made: Strategy = getattr(module, entry.function)(**given)
    return made
