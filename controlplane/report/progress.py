"""A progress bar for `ports.Progress`."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


class Bar:
    """A progress bar with the time left, on stderr if that is a terminal and the bar is `shown`."""

    def __init__(self, *, shown: bool = True) -> None:
        console = Console(stderr=True)
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
