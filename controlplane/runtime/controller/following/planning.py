"""The process that looks for another plan, so that the guard's loop does not wait for it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Protocol

from controlplane.control.load.state import Kind, LoadState, Proposal, Propose, Unheld


class Planning(Protocol):
    """A search for a plan that is under way."""

    def answer(self) -> Proposal | None:
        """Return the proposal; None while the search lasts."""

    def close(self) -> None:
        """End the search."""


Planner = Callable[[str, Propose, LoadState], Planning]
"""Begins to look for a plan for a fleet, a question and the state it comes from."""


class PlanningProcess:
    """A process of `runtime.fleet.proposing`."""

    def __init__(self, fleet: str, asked: Propose, state: LoadState) -> None:
        self._number = asked.number
        names = [w.name for w in state.workloads]
        question = {
            "direction": asked.direction.value,
            "move_price": asked.move_price,
            "rates_rps": dict(zip(names, asked.rates_rps, strict=True)),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "controlplane.runtime.fleet.proposing", fleet],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            text=True,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(question))
            self._process.stdin.close()

    def answer(self) -> Proposal | None:
        """Return the proposal; None while the process runs."""
        if self._process.poll() is None:
            return None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        text, problem = self._process.stdout.read(), self._process.stderr.read()
        self.close()
        try:
            parsed: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError:
            last = (problem.strip().splitlines() or [f"exit {self._process.returncode}"])[-1]
            return Proposal(self._number, Kind.NONE, summary=f"planning failed: {last}")
        return proposal_of(self._number, parsed)

    def close(self) -> None:
        """End the process, if it still runs."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


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
    )
