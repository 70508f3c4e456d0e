"""The process that looks for a plan."""

from __future__ import annotations

import sys

from controlplane.control.autoscaler.state import (
    Direction,
    FollowedWorkload,
    Kind,
    LoadLimits,
    Propose,
    begin,
)
from controlplane.domain.device import Stock
from controlplane.runtime.autoscaler.search import SearchProcess

STATE = begin((FollowedWorkload("W", "w", 10.0),), LoadLimits(), 0.0)
ASKED = Propose(3, Direction.UP, (20.0,), "more")
MORE_THAN_A_PIPE_HOLDS = 200_000
ANSWERS = f"""
import os, pickle, sys
from controlplane.control.autoscaler.state import Kind, Proposal
assert sys.stdin.buffer.read(1)
asked, workloads, stock = pickle.load(os.fdopen(int(sys.argv[2]), "rb"))
long = "x" * {MORE_THAN_A_PIPE_HOLDS}
sys.stderr.write(long)
found = Proposal(asked.number, Kind.PLAN, asked.rates_rps, summary=long, made_from=workloads[0])
pickle.dump(found, sys.stdout.buffer)
"""


def planning(code: str, *, longest_s: float = 600.0) -> SearchProcess:
    search = SearchProcess("f", command=(sys.executable, "-c", code), longest_s=longest_s)
    search.ask(ASKED, STATE, Stock({}))
    return search


def test_a_process_without_a_question_ends_with_what_began_it() -> None:
    search = SearchProcess("f")
    search._go.close()
    assert search._process.wait(60.0) == 0
    search.close()


def test_a_prepared_process_that_died_has_ended() -> None:
    search = SearchProcess("f", command=(sys.executable, "-c", "import sys; sys.stdin.read()"))
    assert not search.ended()
    search._process.kill()
    search._process.wait(60.0)
    assert search.ended()
    search.close()


def test_an_answer_larger_than_a_pipe_is_read() -> None:
    search = planning(ANSWERS)
    search._process.wait(60.0)
    found = search.answer()
    assert found is not None
    assert (found.number, found.kind, found.rates_rps, found.made_from) == (3, Kind.PLAN, (20.0,), "W")
    assert len(found.summary) == MORE_THAN_A_PIPE_HOLDS


def test_a_process_that_fails_is_reported_by_its_last_line() -> None:
    search = planning("raise SystemExit('first\\nno memory is left')")
    search._process.wait(60.0)
    found = search.answer()
    assert found is not None
    assert (found.kind, found.summary) == (Kind.FAILED, "planning failed: no memory is left")


def test_a_search_that_hangs_is_ended_and_reported() -> None:
    hangs = "import threading; threading.Event().wait()"
    search = planning(hangs)
    assert search.answer() is None
    search.close()
    search = planning(hangs, longest_s=0.0)
    found = search.answer()
    assert found is not None
    assert (found.kind, found.summary) == (
        Kind.FAILED,
        "planning failed: it was ended after 0 s without an answer",
    )
    assert search._process.poll() is not None
