"""The program `ctl`, after a check that the packages `controlplane` and `launchers` are Trisect's own.

Other distributions have packages of these names: in one environment with Trisect, or earlier on PYTHONPATH,
they would be imported in place of ours, and fail far from the cause.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

_OURS = {
    "controlplane": '"""Trisect: plans which share of which GPU each model gets',
    "launchers": '"""Ways to run a partition\'s Triton',
}
"""How their files begin."""
_EXIT_ENVIRONMENT = 4
"""As for a program that is missing."""


def namesake() -> str | None:
    """Return the file of a package that is not ours though it has the name of one; None where both are."""
    for name, begin in _OURS.items():
        found = find_spec(name)
        place = found.origin if found is not None else None
        if place is None or not Path(place).read_text(errors="replace").startswith(begin):
            return place or f"nowhere ({name})"
    return None


def main() -> None:
    """Entry point of the console script."""
    if (place := namesake()) is not None:
        print(
            f"ctl: {place}: this package is another distribution's, which has the name of one of Trisect's: "
            "install Trisect into an environment of its own (`python -m venv`), without PYTHONPATH",
            file=sys.stderr,
        )
        sys.exit(_EXIT_ENVIRONMENT)
    from controlplane.cli.main import main as run

    run()
