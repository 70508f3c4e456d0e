"""A progress bar for `ports.Progress`."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

_LINE_S = 10.0
"""The time between two lines at least, where there is no bar."""


class Bar:
    """A progress bar with the time left, on stderr if that is a terminal, else lines by `say`."""

    def __init__(self, say: Callable[[str], None], *, shown: bool = True) -> None:
        console = Console(stderr=True)
        self._say = say if shown and not console.is_terminal else None
        self._begun = False
        self._next_s = time.monotonic() + _LINE_S
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            disable=not (shown and console.is_terminal),
        )
        self._task = self._bar.add_task("", total=None, left="")

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, what: str, done: int, total: int, seconds_left: float | None) -> None:
        """Show that `done` of `total` steps are done; `what` is the present one."""
        left = "" if seconds_left is None else f"{seconds_left:.0f} s left"
        self._bar.update(self._task, description=what, completed=done, total=total, left=left)
        begins = bool(left) and not self._begun  # how long it takes is said at once, where that is known
        now_s = time.monotonic()
        if self._say is not None and (begins or now_s >= self._next_s):
            self._begun, self._next_s = True, now_s + _LINE_S
            self._say(f"{what}: {done} of {total}{left and ', about '}{left}")
