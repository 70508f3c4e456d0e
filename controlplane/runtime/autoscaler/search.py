"""The process that looks for another plan: `python -m controlplane.runtime.autoscaler.search FLEET`.

A process of its own, since planning keeps a core busy, and the guard's loop must not wait for it. It waits
for its question with all that it needs loaded and with what was recorded learned, both of which take longer
than to find other batches. Question and answer are pickled.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import IO, Protocol

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
_COMMAND = (sys.executable, "-m", "controlplane.runtime.autoscaler.search")


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


class SearchProcess:
    """The process: it prepares itself, and waits for one question. It is ended `longest_s` after that.

    The question and what the process prints are files: a full pipe would block. Its stdin is a pipe whose
    first byte says that the question is there, and whose end that none comes.
    """

    def __init__(
        self, fleet: str, *, command: Sequence[str] = _COMMAND, longest_s: float = LONGEST_S
    ) -> None:
        self._number = 0
        self._longest_s = longest_s
        self._ends_s = math.inf
        with ExitStack() as streams:
            self._question, self._answer, self._problem = (
                streams.enter_context(tempfile.TemporaryFile()) for _ in range(3)
            )
            self._process = subprocess.Popen(
                [*command, fleet, str(self._question.fileno())],
                stdin=subprocess.PIPE,
                stdout=self._answer,
                stderr=self._problem,
                pass_fds=(self._question.fileno(),),
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
            assert self._process.stdin is not None
            self._go = streams.enter_context(self._process.stdin)
            self._streams = streams.pop_all()

    def ended(self) -> bool:
        """Return whether the process runs no more."""
        return self._process.poll() is not None

    def ask(self, asked: Propose, state: LoadState, stock: Stock) -> None:
        """Pass the question on; without effect on a process that has failed, which its answer says."""
        self._number, self._ends_s = asked.number, time.monotonic() + self._longest_s
        pickle.dump((asked, [workload.name for workload in state.workloads], stock), self._question)
        self._question.seek(0)
        with contextlib.suppress(BrokenPipeError):
            self._go.write(b"?")
            self._go.flush()

    def answer(self) -> Proposal | None:
        """Return the proposal; None while the process runs."""
        if self._process.poll() is None:
            if time.monotonic() < self._ends_s:
                return None
            self.close()
            return self._failed(f"it was ended after {self._longest_s:g} s without an answer")
        found, problem = self._read(self._answer), self._read(self._problem).decode(errors="replace")
        self.close()
        if self._process.returncode or not found:
            lines = problem.strip().splitlines() or [f"exit {self._process.returncode}"]
            return self._failed(lines[-1])
        proposal: Proposal = pickle.loads(found)
        return proposal

    def close(self) -> None:
        """End the process, if it still runs."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._streams.close()

    def _failed(self, reason: str) -> Proposal:
        return Proposal(self._number, Kind.FAILED, summary=f"planning failed: {reason}")

    @staticmethod
    def _read(stream: IO[bytes]) -> bytes:
        stream.seek(0)
        return stream.read()


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


def main() -> int:
    """Prepare, and answer the question where one comes."""
    files, question = FleetFiles(state_root(), sys.argv[1]), int(sys.argv[2])
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answer:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
        with contextlib.suppress(Exception):  # the question meets it again, and its answer says so
            prepare(files)
        if not sys.stdin.buffer.read(1):
            return 0
        with os.fdopen(question, "rb") as asked_file:
            asked, workloads, stock = pickle.load(asked_file)
        pickle.dump(proposal(files, asked, workloads, stock, time.time()), answer)
    os._exit(0)  # the end of an interpreter with all this loaded takes longer than the search


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


if __name__ == "__main__":
    sys.exit(main())
