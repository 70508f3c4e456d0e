"""Messages about the compilation of kernels, which delays the first command of an installation."""

from __future__ import annotations

from collections.abc import Callable

from controlplane.kernels import on_compilation

_OURS = "controlplane."


def say_when_compiling(say: Callable[[str], None]) -> Callable[[], bool]:
    """Announce each of Trisect's kernels when it is compiled. Returns a function that says if any was."""
    compiled: list[str] = []

    def announce(name: str) -> None:
        if not name.startswith(_OURS):
            return  # a part of numba
        if not compiled:
            say("compiling for this processor, once in an installation:")
        compiled.append(name)
        say(f"  {name.removeprefix(_OURS)}")

    on_compilation(announce)
    return lambda: bool(compiled)
