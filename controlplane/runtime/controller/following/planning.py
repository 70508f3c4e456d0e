"""The process that looks for another plan, so that the guard's loop does not wait for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import IO, Any, Protocol

from controlplane.control.load.state import Kind, LoadState, Proposal, Propose, Unheld

LONGEST_S = 600.0
"""A search that takes longer hangs: a plan for a thousand workloads takes some 15 s."""
_COMMAND = (sys.executable, "-m", "controlplane.runtime.fleet.proposing")


class Planning(Protocol):
    """A search for a plan that is under way."""

    def answer(self) -> Proposal | None:
        """Return the proposal; None while the search lasts."""

    def close(self) -> None:
        """End the search."""


Planner = Callable[[str, Propose, LoadState], Planning]
"""Begins to look for a plan for a fleet, a question and the state it comes from."""


class PlanningProcess:
    """A process of `runtime.fleet.proposing`, ended after `longest_s`.

    Its streams are files: a full pipe would block it until it is read.
    """

    def __init__(
        self,
        fleet: str,
        asked: Propose,
        state: LoadState,
        *,
        command: Sequence[str] = _COMMAND,
        longest_s: float = LONGEST_S,
    ) -> None:
        self._number = asked.number
        self._longest_s = longest_s
        self._ends_s = time.monotonic() + longest_s
        names = [w.name for w in state.workloads]
        question = {
            "direction": asked.direction.value,
            "move_price": asked.move_price,
            "rates_rps": dict(zip(names, asked.rates_rps, strict=True)),
        }
        with ExitStack() as streams:
            stdin, self._answer, self._problem = (
                streams.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)
            )
            json.dump(question, stdin)
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
        texts = self._read(self._answer), self._read(self._problem)
        self.close()
        try:
            parsed: dict[str, Any] = json.loads(texts[0])
        except json.JSONDecodeError:
            return self._failed((texts[1].strip().splitlines() or [f"exit {self._process.returncode}"])[-1])
        return proposal_of(self._number, parsed)

    def close(self) -> None:
        """End the process, if it still runs."""
        self._process.kill()
        self._process.wait()
        self._streams.close()

    def _failed(self, reason: str) -> Proposal:
        return Proposal(self._number, Kind.NONE, summary=f"planning failed: {reason}")

    @staticmethod
    def _read(stream: IO[str]) -> str:
        stream.seek(0)
        return stream.read()


def proposal_of(number: int, answer: dict[str, Any]) -> Proposal:
    """The proposal that `runtime.jobs.propose` wrote."""
    if answer["kind"] == Kind.NONE:
        return Proposal(number, Kind.NONE, summary=answer["summary"], error=answer.get("error"))
    return Proposal(
        number,
        Kind(answer["kind"]),
        tuple(answer["rates_rps"]),
        answer["cost_before"],
        answer["cost_after"],
        answer["moved_cost"],
        tuple(Unheld(**one) for one in answer["unheld"]),
        answer["summary"],
        answer["error"],
        answer["made_from"],
    )
