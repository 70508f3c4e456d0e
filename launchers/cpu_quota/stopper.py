"""Stops and continues the model processes of one server, as a program of its own: `stopper.py PID PERCENT`.

Two processes watch each other. One cycles, the other waits for it: when the cycling one dies, however it
dies, the waiting one lets the models go on and forks another. When the waiting one dies, the cycling one
takes its part. So neither the end of the controller nor of one of the two leaves a model stopped.

Standard library only, and no module of ours: it runs with `python -I -S`, which starts fast and imports
nothing from where the server was started.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

PERIOD_S = 0.02
_LOOK_S = 0.5


class Target:
    """A server, held by a pidfd, which stays valid when its pid is reused."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)
        self._models: dict[int, int] = {}
        self._looked = -_LOOK_S

    def alive(self) -> bool:
        """Whether the server still runs."""
        return not ended(self._handle)

    def models(self) -> list[int]:
        """Return pidfds of the processes that run the models: the server's descendants, else itself.

        The server's own process stays awake where it can: it must go on to take requests.
        """
        if time.monotonic() - self._looked >= _LOOK_S:
            self._look()
        return list(self._models.values()) or [self._handle]

    def everything(self) -> list[int]:
        """Return pidfds of all processes, including the server."""
        self._look()
        return [self._handle, *self._models.values()]

    def _look(self) -> None:
        self._looked = time.monotonic()
        now = descendants(self.pid)
        for pid in [p for p, handle in self._models.items() if p not in now or ended(handle)]:
            os.close(self._models.pop(pid))
        for pid in now - self._models.keys():
            try:
                self._models[pid] = os.pidfd_open(pid)
            except OSError:
                continue


def descendants(pid: int) -> set[int]:
    """Return every process below `pid`."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as stat:
                    parents[int(entry)] = int(stat.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found: set[int] = set()
    fresh = {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def ended(handle: int) -> bool:
    """Return whether the process of this pidfd is gone."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def send(handles: list[int], number: signal.Signals) -> None:
    """Signal the processes that still run."""
    for handle in handles:
        try:
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            continue


def cycle(target: Target, percent: float, watcher: int) -> None:
    """Let the models run for `percent` of every period, until the server or the watcher is gone."""
    while target.alive() and os.getppid() == watcher:
        models = target.models()
        start = time.monotonic()
        try:
            time.sleep(PERIOD_S * percent / 100)
            send(models, signal.SIGSTOP)
            time.sleep(max(0.0, start + PERIOD_S - time.monotonic()))
        finally:
            send(models, signal.SIGCONT)


def watch(target: Target, percent: float) -> None:
    """Keep a cycling process for as long as the server runs, and never leave its models stopped."""
    while target.alive():
        watcher = os.getpid()
        cycling = os.fork()
        if cycling == 0:
            cycle(target, percent, watcher)
            continue  # the watcher died: this process watches now
        os.waitpid(cycling, 0)
        send(target.everything(), signal.SIGCONT)


def main() -> None:
    """Run beside the server until it ends."""
    pid, percent = int(sys.argv[1]), float(sys.argv[2])
    try:
        target = Target(pid)
    except OSError:
        return
    if percent < 100:
        watch(target, percent)


if __name__ == "__main__":
    main()
