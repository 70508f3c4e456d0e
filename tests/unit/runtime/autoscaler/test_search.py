"""The process that looks for a plan."""

from dataclasses import replace
from pathlib import Path

import pytest
import search_work
from background import until

from controlplane.control.autoscaler.state import (
    Direction,
    FollowedWorkload,
    Kind,
    LoadLimits,
    Proposal,
    Propose,
    begin,
)
from controlplane.domain.device import Stock
from controlplane.runtime.autoscaler.search import SearchProcess, Work

STATE = begin((FollowedWorkload("W", "w", 10.0),), LoadLimits(), 0.0)
ASKED = Propose(3, Direction.UP, (20.0,), "more")


def answered(work: Work | None, *, longest_s: float = 600.0) -> Proposal:
    search = SearchProcess("f", work=work, longest_s=longest_s)
    search.ask(ASKED, STATE, Stock({}))
    until(lambda: search._here.poll() or longest_s == 0.0)
    found = search.answer()
    assert found is not None
    assert search.ended()
    return found


def test_a_process_without_a_question_ends_with_what_began_it() -> None:
    search = SearchProcess("f")
    assert not search.ended()
    search._here.close()
    until(search.ended)
    search.close()


def test_an_answer_larger_than_a_pipe_is_read() -> None:
    found = answered(search_work.echo)
    assert (found.number, found.kind, found.rates_rps, found.made_from) == (3, Kind.PLAN, (20.0,), "W")
    assert found.summary == search_work.LONG


def test_a_question_larger_than_a_pipe_waits_for_no_reader() -> None:
    many = replace(STATE, workloads=tuple(FollowedWorkload(f"W{i}", "w", 10.0) for i in range(50_000)))
    read, unread = SearchProcess("f", work=search_work.echo), SearchProcess("f", work=search_work.hang)
    for search in (read, unread):
        search.ask(ASKED, many, Stock({}))
    assert unread.answer() is None
    until(read._here.poll)
    found = read.answer()
    assert found is not None
    assert (found.kind, found.made_from) == (Kind.PLAN, "W0")
    unread.close()
    assert unread.ended()


@pytest.mark.parametrize(
    ("work", "longest_s", "says"),
    [
        (search_work.die, 600.0, "it ended with exit code 3"),
        (search_work.hang, 0.0, "it was ended after 0 s without an answer"),
    ],
)
def test_a_process_that_fails_or_hangs_is_reported(work: Work, longest_s: float, says: str) -> None:
    found = answered(work, longest_s=longest_s)
    assert (found.number, found.kind, found.summary) == (3, Kind.FAILED, f"planning failed: {says}")


def test_a_fleet_without_a_plan_is_no_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = answered(None)
    assert (found.kind, "has no spec" in found.summary) == (Kind.NONE, True)
