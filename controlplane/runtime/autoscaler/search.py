"""The process that looks for another plan.

A process of its own, since planning keeps a core busy, and the guard's loop must not wait for it. It waits
for its question with all that it needs loaded and with what was recorded learned, both of which take longer
than to find other batches.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Protocol

from controlplane.control.autoscaler.state import (
    Direction,
    Kind,
    LoadState,
    Proposal,
    Propose,
    followed_workloads,
)
from controlplane.domain.device import Stock
from controlplane.domain.errors import TrisectError
from controlplane.files.fleets import FleetFiles, state_root

LONGEST_S = 600.0
"""A search that takes longer hangs: a plan for a thousand workloads takes some 15 s."""


class Search(Protocol):
    """A search for a plan that is prepared or under way."""

    def ended(self) -> bool:
        """Return whether a prepared one has died, so that it takes no question."""

    def ask(self, asked: Propose, state: LoadState, stock: Stock) -> None:
        """Ask the one question, which comes from this state, for these devices."""

    def answer(self) -> Proposal | None:
        """Return the proposal; None while the search lasts."""

    def close(self) -> None:
        """End the search."""


Begin = Callable[[str], Search]
"""Begins a search for a fleet, whose question comes later."""
Work = Callable[[str, Connection], None]
"""What the process of a fleet does, with its end of the pipe."""


class SearchProcess:
    """The process: it prepares itself, and waits for one question. It is ended `longest_s` after that."""

    def __init__(self, fleet: str, *, work: Work | None = None, longest_s: float = LONGEST_S) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=work or _answer, args=(fleet, there), daemon=True)
        self._process.start()
        there.close()
        self._asking: threading.Thread | None = None
        self._number = 0
        self._longest_s = longest_s
        self._ends_s = math.inf

    def ended(self) -> bool:
        """Return whether the process runs no more."""
        return not self._process.is_alive()

    def ask(self, asked: Propose, state: LoadState, stock: Stock) -> None:
        """Pass the question on; without effect on a process that has failed, which its answer says.

        In a thread: that of some 10,000 workloads is more than a pipe holds, and a process that prepares
        itself does not read yet.
        """
        self._number, self._ends_s = asked.number, time.monotonic() + self._longest_s
        question = asked, [workload.name for workload in state.workloads], stock

        def send() -> None:
            with contextlib.suppress(OSError):
                self._here.send(question)

        self._asking = threading.Thread(target=send, daemon=True)
        self._asking.start()

    def answer(self) -> Proposal | None:
        """Return the proposal; None while the process runs."""
        if self._here.poll():
            try:
                found: Proposal = self._here.recv()
            except (EOFError, OSError):
                self._process.join()
                found = self._failed(f"it ended with exit code {self._process.exitcode}")
        elif time.monotonic() < self._ends_s:
            return None
        else:
            found = self._failed(f"it was ended after {self._longest_s:g} s without an answer")
        self.close()
        return found

    def close(self) -> None:
        """End the process, if it still runs."""
        self._process.kill()
        self._process.join()
        if self._asking is not None:
            self._asking.join()  # nothing reads the pipe any more
        self._here.close()

    def _failed(self, reason: str) -> Proposal:
        return Proposal(self._number, Kind.FAILED, summary=f"planning failed: {reason}")


def _answer(fleet: str, caller: Connection) -> None:
    """Prepare, and answer the question where one comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller ends it
    files = FleetFiles(state_root(), fleet)
    with contextlib.suppress(Exception):  # the question meets it again, and its answer says so
        prepare(files)
    try:
        asked, workloads, stock = caller.recv()
    except EOFError:
        return
    try:
        found = proposal(files, asked, workloads, stock, time.time())
    except Exception as error:
        traceback.print_exc()
        found = Proposal(asked.number, Kind.FAILED, summary=f"planning failed: {error!r}")
    caller.send(found)


def proposal(
    files: FleetFiles, asked: Propose, workloads: Sequence[str], stock: Stock, now_s: float
) -> Proposal:
    """Return the answer to a question. What prevents learning prevents no plan, and is said with it.

    What arrives beyond the plan is late until other batches are there, so an increase is planned with what
    was learned before: at the last review at the latest.
    """
    from controlplane.runtime.autoscaler.propose import propose

    trouble = "" if asked.direction is Direction.UP else _learn(files, now_s)
    try:
        found = propose(files, asked, workloads, stock)
    except TrisectError as error:
        found = Proposal(asked.number, Kind.NONE, summary=str(error))
    return replace(found, summary=found.summary + trouble)


def _learn(files: FleetFiles, now_s: float) -> str:
    """Learn from the executions that were recorded; return why that was not possible, else nothing."""
    from controlplane.runtime.fleet.calibrate import (
        learn_recorded,  # planners: seconds, for this process only
    )

    try:
        learn_recorded(files, now_s)
    except TrisectError as error:
        return f"; nothing was learned: {error}"
    return ""


def prepare(files: FleetFiles) -> None:
    """Load what a search needs, by looking for a plan with the present rates: nine tenths of its time."""
    from controlplane.runtime.autoscaler.propose import proposed

    plan = files.plan()
    if plan is not None:
        _learn(files, time.time())
        workloads = followed_workloads(plan)
        present = Propose(0, Direction.UP, tuple(w.planned_rps for w in workloads), "")
        stock = Stock(Counter(gpu.type for gpu in plan.gpus))
        proposed(files, present, [w.name for w in workloads], stock)
