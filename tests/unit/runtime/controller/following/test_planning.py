"""The process that looks for a plan."""

from __future__ import annotations

import json
import sys

import pytest

from controlplane.control.load.state import (
    Direction,
    FollowedWorkload,
    Kind,
    LoadLimits,
    Propose,
    begin,
)
from controlplane.runtime.controller.following.planning import PlanningProcess

pytestmark = pytest.mark.unit

STATE = begin((FollowedWorkload("W", "w", 10.0),), LoadLimits(), 0.0)
ASKED = Propose(3, Direction.UP, (20.0,), "more")
MORE_THAN_A_PIPE_HOLDS = 200_000
FOUND = {
    "kind": "plan",
    "rates_rps": [20.0],
    "cost_before": 1.0,
    "cost_after": 2.0,
    "moved_cost": 1.0,
    "unheld": [],
    "error": 0.0,
    "made_from": "abc",
}


def planning(code: str, *, longest_s: float = 600.0) -> PlanningProcess:
    return PlanningProcess("f", ASKED, STATE, command=(sys.executable, "-c", code), longest_s=longest_s)


def test_an_answer_larger_than_a_pipe_is_read() -> None:
    code = (
        "import json, sys; question = json.load(sys.stdin); assert question['rates_rps'] == {'W': 20.0}; "
        f"long = 'x' * {MORE_THAN_A_PIPE_HOLDS}; sys.stderr.write(long); "
        f"print(json.dumps({{**{json.loads(json.dumps(FOUND))!r}, 'summary': long}}))"
    )
    search = planning(code)
    search._process.wait(60.0)
    found = search.answer()
    assert found is not None
    assert (found.number, found.kind, found.rates_rps, found.made_from) == (3, Kind.PLAN, (20.0,), "abc")
    assert len(found.summary) == MORE_THAN_A_PIPE_HOLDS


def test_a_process_that_fails_is_reported_by_its_last_line() -> None:
    search = planning("raise SystemExit('first\\nno memory is left')")
    search._process.wait(60.0)
    found = search.answer()
    assert found is not None
    assert (found.kind, found.summary) == (Kind.NONE, "planning failed: no memory is left")


def test_a_search_that_hangs_is_ended_and_reported() -> None:
    hangs = "import threading; threading.Event().wait()"
    search = planning(hangs)
    assert search.answer() is None
    search.close()
    search = planning(hangs, longest_s=0.0)
    found = search.answer()
    assert found is not None
    assert (found.kind, found.summary) == (
        Kind.NONE,
        "planning failed: it was ended after 0 s without an answer",
    )
    assert search._process.poll() is not None
