"""What a command does between the controller's look and its act: no real command can be timed to do it."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import build
import pytest
from fake_host import GatewayInMemory, NoServers, Program
from fleet_world import World, world

from controlplane.control.converge.actions import SetBatches
from controlplane.control.converge.desired import NamedRoute
from controlplane.control.guard.effects import SetBatch
from controlplane.control.guard.state import GuardState, Limits, Rebatched
from controlplane.domain.errors import EngineError, FleetBusy
from controlplane.domain.fleet import Backend, Batches, Route, Routes, Server
from controlplane.domain.observation import Event, FleetSeen
from controlplane.files.fleets import FleetFiles
from controlplane.monitor.client import RequestLog
from controlplane.monitor.records import Record
from controlplane.runtime import SystemClock
from controlplane.runtime.controller import loop, serve
from controlplane.runtime.controller.adopt import Adopted
from controlplane.runtime.controller.executor import Actor, Decision, Executor, Notice
from controlplane.runtime.controller.loop import Controller
from controlplane.runtime.controller.recorder import StatusFile
from controlplane.runtime.fleet.fleet import Fleet, locked
from controlplane.runtime.fleet.history import History

OLD = Backend("old", "127.0.0.1", 1, 2, 3)
NEW = Backend("new", "127.0.0.1", 4, 5, 6)


class Gateway(GatewayInMemory):
    """Routes that another command may have replaced since."""

    def __init__(self, routes: Routes) -> None:
        super().__init__(routes)
        self.committed: list[Routes] = []
        self.started = False
        self.meanwhile: Callable[[], None] = lambda: None

    def start(self, *_: object) -> None:
        self.started = True

    def commit(self, routes: Routes) -> None:
        self.committed.append(routes)
        self.meanwhile()


class NoRequests:
    heard_since_s = 0.0

    def take(self) -> list[Record]:
        return []


@contextlib.contextmanager
def controlled(
    directory: Path, routed: Backend, notice: Notice = lambda _: None, *, plan_only: bool = False
) -> Iterator[tuple[Controller, Gateway, FleetFiles]]:
    """A controller that knows the old server; its next look would route elsewhere, here to nobody."""
    gateway = Gateway({"w": Route((routed,), None)})
    files = FleetFiles(directory, "f")
    fleet = Fleet(files, cast(Any, NoServers()), cast(Any, gateway), SystemClock(), lambda line: None)
    actor = Actor(fleet, notice) if plan_only else Executor(fleet, History(files.history), notice)
    controller = Controller(fleet, NoRequests(), actor, Limits())
    routes = {"w": NamedRoute(("old",), None)}
    controller._adopted = Adopted(GuardState({}), {}, {}, routes, {"old": OLD})
    controller._adopted.changed_s = files.changed_s()
    controller._checked_s = float("inf")
    try:
        yield controller, gateway, files
    finally:
        controller.close()


@contextlib.contextmanager
def applied() -> Iterator[World]:
    """A fleet in memory with a partition `a`."""
    with world() as here:
        with here.host.running_as(Program()):
            here.apply_last(build.plan(build.partition("a", 20.0, model="echo"), gpu="cpu-0"))
        yield here


@contextlib.contextmanager
def guarded(here: World) -> Iterator[tuple[Controller, Adopted]]:
    """Its controller, which has adopted it."""
    here.serve()
    here.tick(1.0)
    assert here.controller is not None
    assert here.controller._adopted is not None
    yield here.controller, here.controller._adopted


@pytest.mark.parametrize(("found", "commits"), [(OLD, 1), (NEW, 0)])
def test_what_another_command_left_meanwhile_is_not_undone(
    tmp_path: Path, found: Backend, commits: int
) -> None:
    with controlled(tmp_path, found) as (controller, gateway, _):
        controller.step()
    assert len(gateway.committed) == commits
    assert (controller.state is None) == (commits == 0), "what the command left is adopted anew"


def test_a_server_whose_batches_cannot_be_set_is_guarded_like_any(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Event] = []

    def lost(server: Server, batches: Batches) -> None:
        raise EngineError("its file is gone")

    with applied() as here:
        (name,) = here.host.servers
        monkeypatch.setattr(loop, "batches_as_planned", lambda *_: [SetBatches(name, (("a", 2),))])
        monkeypatch.setattr(here.fleet.launcher, "set_batches", lost, raising=False)
        here.serve()
        assert here.controller is not None
        monkeypatch.setattr(here.controller._actor, "event", lambda *of: told.append(Event(0.0, *of)))
        here.tick(1.0)
        assert here.controller.state is not None
    assert [(event.kind, event.subject) for event in told] == [("failed", name), ("adopt", "f")]


def test_lost_batch_files_are_made_again_once_with_the_batch_in_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[str, Batches]] = []
    with applied() as here, guarded(here) as (controller, adopted):
        (name,), watch = here.host.servers, adopted.state.watches["a"]
        endpoint = watch.queues[0].promise.endpoint
        adopted.planned = {"a": replace(adopted.planned["a"], batches=((endpoint, 2),))}
        queue = watch.queues[0]._replace(promise=replace(watch.queues[0].promise, batch=6))
        changed = replace(watch, queues=(queue,), rebatched=Rebatched(1, 1.0))
        adopted.state = replace(adopted.state, watches={"a": changed})
        monkeypatch.setattr(
            controller._actor, "set_batches", lambda s, batches: told.append((s.name, batches))
        )
        engine = controller._observer._engine
        for batches in (((endpoint, 6),), (), (), ((endpoint, 6),), ()):
            engine.listed = replace(engine.listed, batches={name: batches})
            controller._restore_batches(adopted)
    assert told == [(name, ((endpoint, 6),))] * 2


@pytest.mark.parametrize(("fails", "kind", "batch"), [(False, "batch", 2), (True, "failed", 1)])
def test_only_a_batch_that_was_set_is_in_force(
    monkeypatch: pytest.MonkeyPatch, fails: bool, kind: str, batch: int
) -> None:
    told: list[Event] = []

    def set_batches(server: Server, batches: Batches) -> None:
        if fails:
            raise EngineError("its file is gone")

    with applied() as here, guarded(here) as (controller, adopted):
        actor = controller._actor
        monkeypatch.setattr(here.fleet.launcher, "set_batches", set_batches, raising=False)
        monkeypatch.setattr(actor, "note", told.append)
        (name,), watch = here.host.servers, adopted.state.watches["a"]
        promise = watch.queues[0].promise
        queue = watch.queues[0]._replace(promise=replace(promise, batch=2))
        changed = replace(watch, queues=(queue,), rebatched=Rebatched(1, 1.0))
        state = replace(adopted.state, watches={"a": changed})
        change = SetBatch("a", name, promise.endpoint, 2, "slow")
        decision = Decision(state, (change,), adopted.routes, FleetSeen(1.0, (), {}))
        actor.act(decision, adopted, controller._workers, controller._observer)
        after = adopted.state.watches["a"]
    assert [event.kind for event in told] == [kind]
    assert (after.queues[0].promise.batch, after.rebatched.times) == (batch, 1)


def test_a_command_that_works_on_the_fleet_costs_no_evidence(tmp_path: Path) -> None:
    with controlled(tmp_path, OLD) as (controller, gateway, files):
        with locked(files):
            with pytest.raises(FleetBusy):
                controller.step()
            assert gateway.committed == []
            assert controller.state is not None, "what was heard is kept"
        controller.step()
        assert len(gateway.committed) == 1, "it is decided again"


def test_a_working_command_is_reported_only_where_it_works_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    busy = FleetBusy("another command is working")
    with controlled(tmp_path, OLD, lambda event: told.append(event.reason)) as (controller, *_):
        controller._report_failure(busy)
        controller._report_failure(busy)
        assert told == []
        monkeypatch.setattr(loop, "_BUSY_S", 0.0)
        controller._report_failure(busy)
    assert told == [str(busy)]


def test_plan_only_runs_beside_a_controller_and_commits_nothing(tmp_path: Path) -> None:
    told: list[str] = []
    with controlled(tmp_path, OLD, lambda event: told.append(event.kind), plan_only=True) as (
        controller,
        gateway,
        files,
    ):
        with locked(files):
            controller.step()
        assert gateway.committed == []
        assert told == []
        assert controller.state is not None


def test_a_gateway_is_started_only_with_the_fleet_held(tmp_path: Path) -> None:
    # A destroy that holds it has ended the gateway, perhaps.
    log = RequestLog(lambda: None)
    with (
        controlled(tmp_path, OLD) as (controller, gateway, files),
        locked(files),
        pytest.raises(FleetBusy),
    ):
        serve.guard(controller._fleet, lambda e: None, log, threading.Event(), once=True)
    assert not gateway.started


def test_routes_are_committed_before_the_status_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    with controlled(tmp_path, OLD) as (controller, gateway, _):
        gateway.meanwhile = lambda: order.append("committed")
        monkeypatch.setattr(StatusFile, "show", lambda *_, **__: order.append("written"))
        controller.step()
    assert order == ["committed", "written"]
