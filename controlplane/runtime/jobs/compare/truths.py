"""The truths of `ctl compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controlplane.domain.comparison import Truth
from controlplane.domain.errors import InputError
from controlplane.files.mistakes import nearest
from controlplane.latency import registry

_BURSTINESS = 2.0

TRUTHS: Mapping[str, Truth] = {
    one.name: one
    for one in (
        Truth(
            "believed",
            "As believed",
            "executions take what the plan's own latency model says, at their median",
        ),
        Truth(
            "measured",
            "As measured",
            f"executions take what was measured; between the points, the model {registry.DEFAULT}",
            model=registry.DEFAULT,
        ),
        Truth("slower", "10 % slower", "as measured, and 10 % longer", model=registry.DEFAULT, factor=1.1),
        Truth("faster", "10 % faster", "as measured, and 10 % shorter", model=registry.DEFAULT, factor=0.9),
        Truth(
            "burstier",
            "Burstier",
            f"as measured, with requests in bursts (gaps vary {_BURSTINESS:g} times as much as by Poisson)",
            model=registry.DEFAULT,
            burstiness=_BURSTINESS,
        ),
        Truth(
            "even",
            "Evenly spaced",
            "as measured, with requests at even intervals, as some load generators send them",
            model=registry.DEFAULT,
            burstiness=0.0,
        ),
    )
}
DEFAULT = ("believed", "measured", "slower", "faster", "burstier")


def chosen(names: Sequence[str]) -> tuple[Truth, ...]:
    """Return the truths of these names. Raises InputError, with the nearest name, for an unknown one."""
    for name in names:
        if name not in TRUTHS:
            raise InputError(f"no truth is called {name!r}{nearest(name, TRUTHS)}", field="--truths")
    return tuple(TRUTHS[name] for name in dict.fromkeys(names))
