"""The controller's parts that need no server: its history, its log, who sits where after a restart."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from controlplane.control.desired import Desired, NamedRoute
from controlplane.control.guard_state import Launch, Limits, Ward
from controlplane.control.sequential import Promise
from controlplane.domain.errors import EngineError, GatewayError
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.domain.workload import ShadowPolicy
from controlplane.files.fleets import FleetFiles, FleetSettings
from controlplane.monitor.request_log import RequestLog, parse
from controlplane.runtime import service
from controlplane.runtime.clock import wait_until
from controlplane.runtime.controller import take_over
from controlplane.runtime.crew import spec_for
from controlplane.runtime.history import Event, History

pytestmark = pytest.mark.unit

LINE = "h:grpc:7 {count} alexnet 127.0.0.1 9001 {http} {grpc} {flags} 12 34 100 500000 100 750000 g_3"


def words(count: int = 1, http: int = 200, grpc: str = "-", flags: str = "----") -> list[str]:
    return LINE.format(count=count, http=http, grpc=grpc, flags=flags).split()


def test_a_line_is_a_request_with_its_time() -> None:
    end = parse(words())
    assert end is not None
    assert (end.endpoint, end.host, end.port, end.failed) == ("alexnet", "127.0.0.1", 9001, False)
    assert (end.ended_s, end.latency_ms) == (100.75, pytest.approx(250.0))


@pytest.mark.parametrize(
    ("http", "grpc", "failed"),
    [(200, "0", False), (400, "-", False), (200, "3", False), (500, "-", True), (200, "14", True)],
)
def test_a_bad_input_is_an_answer_and_a_server_error_is_not(http: int, grpc: str, failed: bool) -> None:
    end = parse(words(http=http, grpc=grpc))
    assert end is not None
    assert end.failed is failed


def test_what_no_server_answered_or_the_client_left_is_no_request() -> None:
    assert parse(words(flags="CD--")) is None
    no_server = words()
    no_server[4] = "-"
    assert parse(no_server) is None
    no_model = words()
    no_model[2] = "-"
    assert parse(no_model) is None


def test_the_log_is_read_in_order_and_counts_what_is_lost() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = RequestLog(port)
    try:
        with pytest.raises(GatewayError, match="somebody else"):
            RequestLog(port)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for count in (1, 2, 5):
                sender.sendto(" ".join(words(count)).encode(), ("127.0.0.1", port))
            sender.sendto(b"not a line of ours", ("127.0.0.1", port))
        taken = []
        assert wait_until(lambda: taken.extend(log.take()) or len(taken) == 3, deadline_s=5.0)
        assert log.lost == 2
    finally:
        log.close()


def test_history_is_bounded_and_read_oldest_first(tmp_path: Path) -> None:
    history = History(tmp_path / "h.sqlite", keep=300)
    assert history.events() == ()
    for i in range(600):
        history.write(Event(float(i), "info", "said", "w", str(i)))
    kept = history.events(limit=10_000)
    assert 300 <= len(kept) <= 300 + 256
    assert [e.reason for e in kept] == [str(i) for i in range(600 - len(kept), 600)]
    assert [e.at_s for e in history.events(since_s=597.0)] == [597.0, 598.0, 599.0]


def test_a_disk_that_refuses_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "in-the-way").write_text("")
    history = History(tmp_path / "in-the-way" / "h.sqlite")
    history.write(Event(1.0, "info", "said", "w", "x"))
    assert history.lost == 1


def test_a_broken_history_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "h.sqlite").write_text("no database" * 100)
    with pytest.raises(EngineError, match="delete it"):
        History(tmp_path / "h.sqlite").events()


def test_one_controller_a_fleet(tmp_path: Path) -> None:
    files = FleetFiles(tmp_path, "f")
    files.directory.mkdir()
    assert service.pid(files) is None
    with service.only_controller(files):
        assert service.pid(files) is not None
        with pytest.raises(EngineError, match="already has a controller"), service.only_controller(files):
            pass
    assert service.pid(files) is None
    assert not service.stop(files)


def spec(role: Role, percent: float, revision: str, partition: str = "W1") -> ServerSpec:
    return ServerSpec(Labels("f", "p", partition, role, revision), "/r", ("w1",), "cpu-0", percent)


def server(made: ServerSpec, state: ServerState = ServerState.RUNNING) -> Server:
    return Server(made.name, made, state, "127.0.0.1", 1, 2, 3)


ACTIVE, SHADOW, LARGER = spec(Role.ACTIVE, 50, "a"), spec(Role.SHADOW, 60, "b"), spec(Role.SHADOW, 70, "c")
DESIRED = Desired({ACTIVE.name: ACTIVE, SHADOW.name: SHADOW}, {"w1": NamedRoute((ACTIVE.name,), SHADOW.name)})
SETTINGS = FleetSettings("process", "/m", "/o", {"cpu-0": "cpu-0"})
WARD = Ward("W1", "cpu-0", 50.0, (Promise("w1", 100.0, 10.0),), ShadowPolicy.HOT, "cpu-0", 10.0)


@pytest.mark.parametrize(
    ("running", "route", "active", "standby", "surplus"),
    [
        ((ACTIVE, SHADOW), NamedRoute((ACTIVE.name,), SHADOW.name), ACTIVE, SHADOW, ()),
        # Killed after the redirect, before the old server was stopped: that is finished.
        ((ACTIVE, SHADOW), NamedRoute((SHADOW.name,)), SHADOW, None, (ACTIVE,)),
        # Killed while the next shadow started.
        ((SHADOW, LARGER), NamedRoute((SHADOW.name,)), SHADOW, LARGER, ()),
        # Turned over by hand: the planned server is the way back.
        ((ACTIVE, SHADOW), NamedRoute((SHADOW.name,), ACTIVE.name), SHADOW, ACTIVE, ()),
        # The active one died while nobody looked.
        ((SHADOW,), NamedRoute((ACTIVE.name,), SHADOW.name), SHADOW, None, ()),
        # Nothing lives: the planned server's seat is kept for its successor.
        ((), NamedRoute((ACTIVE.name,), SHADOW.name), ACTIVE, None, ()),
    ],
)
def test_who_sits_where_after_a_restart(
    running: tuple[ServerSpec, ...],
    route: NamedRoute,
    active: ServerSpec,
    standby: ServerSpec | None,
    surplus: tuple[ServerSpec, ...],
) -> None:
    dead = server(spec(Role.SHADOW, 80, "d"), ServerState.EXITED)
    taken = take_over(
        (WARD,), DESIRED, SETTINGS, (*map(server, running), dead), {"w1": route}, Limits(), int(time.time())
    )
    watch = taken.state.watches["W1"]
    assert watch.active.server == active.name
    assert (watch.standby.server if watch.standby else None) == (standby.name if standby else None)
    assert {s.name for s in taken.surplus} == {s.name for s in surplus}
    assert {s.name for s in taken.kept} == {s.name for s in running} - {s.name for s in surplus}


def test_each_launch_is_a_server_of_its_own() -> None:
    first = spec_for(Launch("W1", "W1.1", "cpu-0", 60.0, 1), ACTIVE, "cpu-0")
    second = spec_for(Launch("W1", "W1.2", "cpu-0", 60.0, 2), ACTIVE, "cpu-0")
    assert first.name != second.name
    assert (first.labels.partition, first.labels.role, first.percent) == ("W1", Role.SHADOW, 60.0)
