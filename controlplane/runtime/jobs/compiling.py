"""Kernels are compiled once in an installation: a pause that is explained."""

from __future__ import annotations

from collections.abc import Callable

from controlplane.kernels import on_compilation

_OURS = "controlplane."


def say_when_compiling(say: Callable[[str], None]) -> Callable[[], bool]:
    """Announce each of our kernels that is compiled from now on. Returns whether any was."""
    compiled: list[str] = []

    def announce(name: str) -> None:
        if not name.startswith(_OURS):
            return  # a part of numba, for one of ours
        if not compiled:
            say("compiling for this processor, once in an installation:")
        compiled.append(name)
        say(f"  {name.removeprefix(_OURS)}")

    on_compilation(announce)
    return lambda: bool(compiled)
