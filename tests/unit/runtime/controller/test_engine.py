"""What the engine and the launcher say of servers, while the engine answers and while it does not."""

import math
import threading
from dataclasses import replace
from typing import Any

import pytest
from observer_rig import SERVER, SPEC, Engine, Rig, rested

from controlplane.domain.fleet import Server, ServerState
from controlplane.domain.observation import Health, News
from controlplane.files.waiting import wait_until
from controlplane.runtime.controller import engine as engine_module
from controlplane.runtime.controller.engine import Listed


def await_list(rig: Rig) -> engine_module.EngineNews:
    engine = rig.observer._engine
    assert wait_until(lambda: (rig.health(), engine.listed.answered_s)[1] > -math.inf, deadline_s=30.0)
    return engine


def test_a_silent_engine_holds_no_look_up(rig: Rig) -> None:
    rig.engine.silent = threading.Event()
    assert [rig.health() for _ in range(3)] == [Health.READY] * 3
    assert not rig.engine.waited_for


def test_deaths_told_by_an_engine_that_goes_away_are_believed_once_it_answers(rig: Rig) -> None:
    rig.engine.away = True
    rig.engine.news_.append(News((SERVER.name,), "died"))
    assert wait_until(lambda: (rig.health(), rig.observer.troubles)[1]["engine"] != "", deadline_s=30.0)
    assert rig.health() is Health.READY
    rig.engine.away = False
    assert wait_until(lambda: rig.health() is Health.GONE, deadline_s=30.0)
    assert rig.observer.troubles["engine"] == ""


def test_a_death_that_the_kernel_reports_is_believed_while_the_engine_is_away(rig: Rig) -> None:
    rig.engine.away = True
    rig.engine.news_.append(News((SERVER.name,), "died", certain=True))
    assert rig.health() is Health.GONE


@pytest.mark.parametrize(
    ("listed", "health"),
    [
        (replace(SERVER, state=ServerState.PAUSED), Health.PAUSED),
        (replace(SERVER, end="another program sent it SIGTERM"), Health.ENDING),
        (replace(SERVER, state=ServerState.EXITED, end="exit code 1"), Health.GONE),
    ],
)
def test_the_engines_list_says_what_a_server_is_and_until_when(
    rig: Rig, listed: Server, health: Health
) -> None:
    rig.health()  # it was there before
    for present, seen in ((listed, health), (SERVER, Health.READY)):
        rig.engine.listed = present
        rig.engine.news_.append(News((SERVER.name,), "asks for a list at once", health=Health.PAUSED))
        assert wait_until(lambda seen=seen: rig.health() is seen, deadline_s=30.0)


def test_one_that_rests_and_that_the_engine_lists_no_more_is_gone_until_it_is_listed_again(rig: Rig) -> None:
    engine = await_list(rig)
    rig.requests.answered = ()

    def listed(*names: str, **ends: str) -> tuple[Health, str]:
        engine.listed = Listed(engine.listed.answered_s + 1e6, frozenset(names), ends=ends)
        seen = rig.server(rested())
        return seen.health, seen.reason

    assert listed() == (Health.GONE, "its process ended")
    assert listed(SERVER.name) == (Health.READY, "")
    assert listed(**{SERVER.name: "out of memory"}) == (Health.GONE, "out of memory")


def test_a_server_that_is_new_is_listed_within_a_second(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    # A model's process is watched from then on: before, its death would go unseen.
    engine = await_list(rig)
    rig.requests.answered = ()
    paces: list[engine_module.Pace] = []
    monkeypatch.setattr(engine, "ask", lambda now, pace: paces.append(pace))
    rig.observer.look(rested())
    rig.workers.adopt(replace(SERVER, spec=replace(SPEC, labels=replace(SPEC.labels, revision="r2"))))
    rig.observer.look(rested())
    assert paces == [engine_module.CALM, engine_module.HURRIED]


def test_a_list_that_costs_much_is_asked_for_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher: Any = Engine()
    spent = iter([0.0, 0.2, 0.2, 0.2])  # of the thread that asks: a fifth of a second
    monkeypatch.setattr(engine_module.time, "thread_time", lambda: next(spent))
    queries = engine_module.EngineNews(launcher, "f")

    def answered(at_s: float) -> bool:
        queries.ask(at_s, engine_module.CALM)
        return queries.listed.answered_s == at_s

    try:
        assert wait_until(lambda: answered(100.0), deadline_s=30.0)
        assert not wait_until(lambda: answered(119.0), deadline_s=0.2)
        assert wait_until(lambda: answered(121.0), deadline_s=30.0), "once in 20 s is a hundredth of a core"
    finally:
        queries.close()
