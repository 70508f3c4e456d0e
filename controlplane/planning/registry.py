"""Strategies by the names that `--strategy` calls them.

Strategies of other distributions are entry points of the group `trisect.strategies`: each a function that
makes a `Strategy`, whose parameters are its options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.domain.errors import InputError
from controlplane.extensions import Named, Registry

if TYPE_CHECKING:
    from controlplane.planning.protocol import Strategy

_IGNITER = "controlplane.papers.igniter.strategy"
_GPULET = "controlplane.papers.gpulet.strategy"
DEFAULT = "joint"
STRATEGIES = Registry(
    "trisect.strategies",
    {
        DEFAULT: Named("controlplane.planning.joint.strategy", "Joint", ("iterations", "late_binding")),
        "igniter": Named(_IGNITER, "strategy", variant="igniter"),
        "inss": Named("controlplane.papers.inss.strategy", "strategy", ("iterations", "bda", "policy")),
        "ffd+": Named(_IGNITER, "strategy", variant="ffd+"),
        "ffd++": Named(_IGNITER, "strategy", variant="ffd++"),
        "gslice+": Named("controlplane.papers.igniter.gslice", "strategy"),
        **{
            name: Named(_GPULET, "strategy", ("as_coded", "as_printed"), variant=name)
            for name in ("sbp", "greedy-best-fit", "gpulet", "gpulet+int", "gpulet-ideal")
        },
        "gpu-lets+": Named("controlplane.papers.gpulet.plus", "strategy"),
        "latency-aware": Named("controlplane.papers.latency_aware.strategy", "strategy"),
    },
)


def strategy(name: str, **options: object) -> Strategy:
    """The strategy called `name`, with its own options; None leaves an option at its default.

    Raises InputError, with the nearest name, where there is none, and for another strategy's option.
    """
    if name not in STRATEGIES:
        raise InputError(f"no strategy is called {name}; {STRATEGIES.hint(name)}", field="strategy")
    chosen = STRATEGIES[name]
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if not chosen.takes(option):
            others = " or ".join(other for other in STRATEGIES if STRATEGIES[other].takes(option))
            raise InputError(f"is for --strategy {others} alone, not for {name}", field=option)
    made: Strategy = chosen.load()(**given)
    return made
