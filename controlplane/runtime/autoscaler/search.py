"""The process that looks for another plan: `python -m controlplane.runtime.autoscaler.search FLEET`.

A process of its own, since planning keeps a core busy, and the guard's loop must not wait for it. It first
learns from the executions that were recorded. Question and answer are pickled.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import IO, Protocol

from controlplane.control.autoscaler.state import Kind, LoadState, Proposal, Propose
from controlplane.domain.device import Stock
from controlplane.domain.errors import TrisectError
from controlplane.files.fleets import FleetFiles, state_root

LONGEST_S = 600.0
"""A search that takes longer hangs: a plan for a thousand workloads takes some 15 s."""
_COMMAND = (sys.executable, "-m", "controlplane.runtime.autoscaler.search")


class Search(Protocol):
    """A search for a plan that is under way."""

    def answer(self) -> Proposal | None:
        """Return the proposal; None while the search lasts."""

    def close(self) -> None:
        """End the search."""


Begin = Callable[[str, Propose, LoadState, Stock], Search]
"""Begins to look for a plan for a fleet, a question, the state it comes from, and the devices for it."""


class SearchProcess:
    """The process, ended after `longest_s`.

    Its streams are files: a full pipe would block it until it is read.
    """

    def __init__(
        self,
        fleet: str,
        asked: Propose,
        state: LoadState,
        stock: Stock,
        *,
        command: Sequence[str] = _COMMAND,
        longest_s: float = LONGEST_S,
    ) -> None:
        self._number = asked.number
        self._longest_s = longest_s
        self._ends_s = time.monotonic() + longest_s
        with ExitStack() as streams:
            stdin, self._answer, self._problem = (
                streams.enter_context(tempfile.TemporaryFile()) for _ in range(3)
            )
            pickle.dump((asked, [workload.name for workload in state.workloads], stock), stdin)
            stdin.seek(0)
            self._process = subprocess.Popen(
                [*command, fleet],
                stdin=stdin,
                stdout=self._answer,
                stderr=self._problem,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
            self._streams = streams.pop_all()

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
        self._streams.close()

    def _failed(self, reason: str) -> Proposal:
        return Proposal(self._number, Kind.NONE, summary=f"planning failed: {reason}")

    @staticmethod
    def _read(stream: IO[bytes]) -> bytes:
        stream.seek(0)
        return stream.read()


def proposal(
    files: FleetFiles, asked: Propose, workloads: Sequence[str], stock: Stock, now_s: float
) -> Proposal:
    """Return the answer to a question. What prevents learning prevents no plan, and is said with it."""
    from controlplane.runtime.autoscaler.propose import propose
    from controlplane.runtime.fleet.calibrate import (
        learn_recorded,  # planners: seconds, for this process only
    )

    trouble = ""
    try:
        learn_recorded(files, now_s)
    except TrisectError as error:
        trouble = f"; nothing was learned: {error}"
    try:
        found = propose(files, asked, workloads, stock)
    except TrisectError as error:
        found = Proposal(asked.number, Kind.NONE, summary=str(error))
    return replace(found, summary=found.summary + trouble)


def main() -> int:
    """Answer the question on stdin."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answer:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
        asked, workloads, stock = pickle.load(sys.stdin.buffer)
        found = proposal(FleetFiles(state_root(), sys.argv[1]), asked, workloads, stock, time.time())
        pickle.dump(found, answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
