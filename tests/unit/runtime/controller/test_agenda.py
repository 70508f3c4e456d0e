"""What is due, in the order of its times."""

from __future__ import annotations

import math

import pytest

from controlplane.runtime.controller.agenda import Agenda

pytestmark = pytest.mark.unit


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
