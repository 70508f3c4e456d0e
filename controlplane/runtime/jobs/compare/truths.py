"""The truths of `ctl compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.domain.comparison import Truth
from controlplane.domain.errors import InputError
from controlplane.files.mistakes import nearest
from controlplane.latency import registry

_BURSTINESS = 2.0


@dataclass(frozen=True, slots=True)
class World:
    """A truth that can be simulated.

    model: the latency model of the execution times; None is the plan's own. factor: on these times.
    burstiness: the coefficient of variation of the gaps between requests: 0 is even; None keeps the
    workloads' arrivals.
    """

    truth: Truth
    model: str | None = registry.DEFAULT
    factor: float = 1.0
    burstiness: float | None = None


TRUTHS: Mapping[str, World] = {
    one.truth.name: one
    for one in (
        World(
            Truth(
                "believed",
                "As believed",
                "executions take what the plan's own latency model says, at their median",
            ),
            model=None,
        ),
        World(
            Truth(
                "measured",
                "As measured",
                f"executions take what was measured; between the points, the model {registry.DEFAULT}",
            )
        ),
        World(Truth("slower", "10 % slower", "as measured, and 10 % longer"), factor=1.1),
        World(Truth("faster", "10 % faster", "as measured, and 10 % shorter"), factor=0.9),
        World(
            Truth(
                "burstier",
                "Burstier",
                f"as measured, with requests in bursts (gaps vary {_BURSTINESS:g} times as much as by "
                "Poisson)",
            ),
            burstiness=_BURSTINESS,
        ),
        World(
            Truth(
                "even",
                "Evenly spaced",
                "as measured, with requests at even intervals, as some load generators send them",
            ),
            burstiness=0.0,
        ),
    )
}
DEFAULT = ("believed", "measured", "slower", "faster", "burstier")


def chosen(names: Sequence[str]) -> tuple[World, ...]:
    """Return the truths of these names. Raises InputError, with the nearest name, for an unknown one."""
    for name in names:
        if name not in TRUTHS:
            raise InputError(f"no truth is called {name!r}{nearest(name, TRUTHS)}", field="--truths")
    return tuple(TRUTHS[name] for name in dict.fromkeys(names))
