"""Calls in threads, one at a time for a name, and what is due, in the order of its times."""

import math
import threading
from collections.abc import Iterator

import pytest

from controlplane.files.waiting import wait_until
from controlplane.runtime.polled import Agenda, Polled


def taken(agenda: Agenda, now_s: float) -> list[str]:
    found = []
    while (name := agenda.take(now_s)) is not None:
        found.append(name)
    return found


def test_what_is_due_comes_in_order_and_once() -> None:
    agenda = Agenda()
    for name, at_s in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("never", math.inf)):
        agenda.put(name, at_s)
    assert taken(agenda, 0.5) == []
    assert taken(agenda, 2.0) == ["a", "b"]
    assert taken(agenda, 1e9) == ["c"]


def test_the_earlier_of_two_times_counts() -> None:
    agenda = Agenda()
    agenda.put("a", 5.0)
    agenda.put("a", 3.0)
    agenda.put("a", 4.0)
    assert taken(agenda, 3.0) == ["a"]
    assert taken(agenda, 9.0) == []


def test_what_is_forgotten_is_due_no_more() -> None:
    agenda = Agenda()
    agenda.put("a", 1.0)
    agenda.forget("a")
    assert taken(agenda, 9.0) == []
    agenda.put("a", 2.0)
    assert taken(agenda, 9.0) == ["a"]


@pytest.fixture
def polled() -> Iterator[Polled[int]]:
    made: Polled[int] = Polled(2, "test")
    yield made
    made.close()


def test_one_call_of_a_name_is_under_way_at_a_time_and_the_next_one_waits_its_turn(
    polled: Polled[int],
) -> None:
    may = threading.Event()

    def call() -> int:
        may.wait(30.0)
        return 1

    for now in (0.0, 100.0):
        polled.ask("a", call, now, every_s=1.0)
    polled.ask("b", lambda: 2, 0.0)
    assert wait_until(lambda: not polled.is_under_way("b"), deadline_s=30.0)
    assert polled.take() == [("b", 2)]
    may.set()
    assert wait_until(lambda: not polled.is_under_way("a"), deadline_s=30.0)
    assert polled.take() == [("a", 1)]
    polled.ask("a", call, 0.5, every_s=1.0)
    assert not polled.is_under_way("a"), "the one before is recent"
    assert polled.asked_since(-1.0) == 2


def test_a_call_that_raises_has_no_answer_and_is_made_again(polled: Polled[int]) -> None:
    for now in (0.0, 1.0):
        polled.ask("a", lambda: int("a page that no Triton writes"), now)
        assert polled.asked_s("a") == now
        assert wait_until(lambda: not polled.is_under_way("a"), deadline_s=30.0)
    assert polled.take() == []


def test_a_call_under_way_for_a_name_that_is_forgotten_leaves_nothing(polled: Polled[int]) -> None:
    may, ended = threading.Event(), threading.Event()
    polled.ask("a", lambda: (may.wait(30.0), ended.set(), 1)[-1], 0.0)
    polled.forget("a")
    polled.ask("a", lambda: 2, 0.0)
    assert wait_until(lambda: not polled.is_under_way("a"), deadline_s=30.0)
    may.set()
    assert ended.wait(30.0)
    polled.close()
    assert polled.take() == [("a", 2)]
