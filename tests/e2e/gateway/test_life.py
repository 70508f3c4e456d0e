import asyncio
import contextlib
import csv
import io
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gateway_rig as rig
import grpc
import psutil
import pytest
from background import stopped, until
from gateway_clients import SERVICE
from host_ports import free_ports
from perf_client import perf_analyzer

from controlplane.domain.errors import GatewayError, MissingTool
from controlplane.domain.fleet import Route
from controlplane.files.gateway import read_restarts
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes, startup
from controlplane.gateway.haproxy import HaproxyGateway
from controlplane.gateway.running import RuntimeSocket, reuses_grpc

ANSWERS = 20
"""So many show where requests go."""

Running = tuple[HaproxyGateway, rig.Ports]
Pair = dict[str, rig.Triton]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_perf_analyzer_sees_no_failure(gateway: Running, pair: Pair, protocol: str) -> None:
    made, ports = gateway
    made.commit({"echo": Route((pair["one"].backend,), pair["two"].backend)})
    port = ports.grpc if protocol == "grpc" else ports.http
    asked = (
        f"-m echo -u {rig.HOST}:{port} -i {protocol} -b 1 --shape INPUT:4 --async --max-threads=2 "
        "--request-rate-range=200 --request-distribution=poisson --request-count=400 --percentile=99"
    )
    done = perf_analyzer(*asked.split())
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "Failed" not in said, said
    assert "Request count: 400\n" in said, said
    # Of 200 a second. How near it comes is the bench's to say: here any host may stand still now and then.
    assert float(said.split("Throughput: ")[1].split(" ")[0]) > 20, said


def test_requests_share_connections_to_the_first_servers_and_where_haproxy_can_to_later_ones(
    fresh: Running, pair: Pair, tmp_path: Path
) -> None:
    made, ports = fresh
    paths = GatewayPaths.of(tmp_path / "gateway")
    runtime = RuntimeSocket(paths.runtime_socket)
    for server, shared in (("one", True), ("two", reuses_grpc(runtime.info("Version")))):
        made.commit({"echo": Route((pair[server].backend,))})
        load = rig.Load(ports)
        with rig.under_load(load.one_by_one):
            until(lambda load=load: len(load.outcomes) >= 2 * ANSWERS)
        assert load.failed() == []
        slot = runtime.map_value(paths.models_map, "echo")
        for protocol, kept in (("h", True), ("g", shared)):
            text = runtime.ask(f"show stat {protocol}_{slot} 4 -1").removeprefix("# ")
            opened = sum(int(row["connect"]) for row in csv.DictReader(io.StringIO(text)))
            assert (opened < ANSWERS) is kept, text


def test_a_start_waits_for_no_haproxy_that_never_led_to_a_server(
    fresh: Running, pair: Pair, tmp_path: Path
) -> None:
    made, ports = fresh
    paths, ended = GatewayPaths.of(tmp_path / "gateway"), threading.Event()

    def messages() -> Iterator[bytes]:
        ended.wait(60.0)
        yield from ()

    before = processes.find(paths, processes.HAPROXY)
    made.commit({})
    assert processes.find(paths, processes.HAPROXY) == before, "nothing is to be led to"
    runtime = RuntimeSocket(paths.runtime_socket)
    renews = not reuses_grpc(runtime.info("Version"))
    with grpc.insecure_channel(f"{rig.HOST}:{ports.grpc}") as channel:
        channel.unary_unary(SERVICE + "ServerLive")(b"")
        try:
            stream = channel.stream_stream(SERVICE + "ModelStreamInfer")(messages())
            until(lambda: runtime.sessions(["facade_grpc"])["facade_grpc", "BACKEND"].current == 1)
            made.commit({"echo": Route((pair["one"].backend,))})
            for _ in range(2):
                began = time.monotonic()
                made.start(rig.options(ports))
                assert time.monotonic() - began < 20.0, "it ends after 30 s"
                assert len(processes.find(paths, processes.HAPROXY)) == 1 + renews
        finally:
            ended.set()
        assert list(stream) == []


def test_requests_in_flight_are_counted_and_end_where_they_are(gateway: Running, pair: Pair) -> None:
    made, ports = gateway
    one, two = pair["one"].backend, pair["two"].backend
    made.commit({"slow": Route((one,))})
    load = rig.Load(ports, "slow", seconds_of_work=rig.HELD)

    with rig.under_load(lambda _: load.at_once(2)), rig.held(pair["one"]):
        until(lambda: made.in_flight(one).total == 2)
        made.commit({"slow": Route((two,))})
        assert made.in_flight(one).total == 2
        assert made.in_flight(two).total == 0
    assert load.failed() == []
    assert {o.server for o in load.outcomes} == {"one"}
    until(lambda: made.in_flight(one).total == 0)


def test_a_server_killed_after_its_redirect_loses_nothing_it_held(
    gateway: Running, pair: Pair, tmp_path: Path
) -> None:
    made, ports = gateway
    with rig.tritons(tmp_path, doomed={"slow": "slow"}) as running:
        doomed, two = running["doomed"], pair["two"].backend
        made.commit({"slow": Route((doomed.backend,), two)})
        load = rig.Load(ports, "slow", seconds_of_work=rig.HELD)

        with rig.held(doomed), rig.under_load(lambda _: load.at_once(20)):
            until(lambda: made.in_flight(doomed.backend).total == 20)
            made.commit({"slow": Route((two,))})
            assert made.in_flight(doomed.backend).total == 20
            doomed.kill()
    assert load.failed() == []
    assert [o.server for o in load.outcomes] == ["two"] * 20


# HAProxy also after the supervisor, which adopted it.
@pytest.mark.parametrize("role", [*processes.KEPT_UP, processes.SUPERVISOR, processes.HAPROXY])
def test_what_dies_comes_back_with_its_routes(gateway: Running, pair: Pair, home: Path, role: str) -> None:
    made, ports = gateway
    places = GatewayPaths.of(home / "gateway")
    routes = {"echo": Route((pair["one"].backend,), pair["two"].backend)}
    made.commit(routes)
    pid, haproxy = rig.only(places, role), rig.only(places, processes.HAPROXY)
    before = len(read_restarts(places.restarts))
    os.kill(pid, signal.SIGKILL)
    if role == processes.SUPERVISOR:
        until(lambda: processes.find(places, role) not in ((), (pid,)))
        assert processes.find(places, processes.HAPROXY) == (haproxy,)
    until(lambda: len(processes.find(places, role)) == 1 and processes.find(places, role) != (pid,))
    made.start(rig.options(ports))
    assert made.routes() == routes
    # A supervisor is there a moment before it has taken over.
    until(lambda: len(read_restarts(places.restarts)) > before)
    assert [one.role for one in read_restarts(places.restarts)[before:]] == [role]
    load = rig.Load(ports)
    asyncio.run(load.at_once(20))
    assert load.failed() == []
    made.commit({"echo": Route((pair["two"].backend,))})
    until(lambda: made.in_flight(pair["one"].backend).total == 0)


@pytest.mark.parametrize("hurried", [False, True], ids=["started by the facade", "first by a command"])
def test_who_connects_while_haproxy_is_down_waits_and_is_answered(
    gateway: Running, pair: Pair, home: Path, hurried: bool
) -> None:
    made, ports = gateway
    places = GatewayPaths.of(home / "gateway")
    made.commit({"echo": Route((pair["one"].backend,))})
    # The next supervisor adopts this HAProxy and holds its sockets all the same.
    first = rig.only(places, processes.SUPERVISOR)
    before = len(read_restarts(places.restarts))
    _kill(first)
    if hurried:
        processes.start_supervisor(places)
    _await_supervisor_with_sockets(places)
    (supervisor,) = processes.find(places, processes.SUPERVISOR)
    with stopped(supervisor):
        _kill(rig.only(places, processes.HAPROXY))
        over_http = socket.create_connection((rig.HOST, ports.http), timeout=60)
        over_grpc = socket.create_connection((rig.HOST, ports.grpc), timeout=60)
    with over_http, over_grpc:
        over_http.sendall(b"GET /v2/models/echo/ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert over_http.recv(12) == b"HTTP/1.1 200"
        over_grpc.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
        assert over_grpc.recv(4)[3] == 4, "the settings of an HTTP/2 server"
    restarted = [one.role for one in read_restarts(places.restarts)[before:]]
    assert restarted.count(processes.SUPERVISOR) == 1, "one that makes way for the facade's took nothing over"


def test_a_supervisor_that_nobody_handed_the_sockets_starts_haproxy_all_the_same(
    gateway: Running, pair: Pair, home: Path
) -> None:
    made, ports = gateway
    places = GatewayPaths.of(home / "gateway")
    made.commit({"echo": Route((pair["one"].backend,))})
    supervisor, facade = (rig.only(places, r) for r in (processes.SUPERVISOR, processes.FACADE))
    # As where an apply is quicker than the facade, which holds the sockets, to see that there is none.
    with stopped(facade):
        _kill(supervisor)
        processes.start_supervisor(places)
        until(lambda: not processes.supervisor_is_missing(places))
    rig.replaced(places, processes.HAPROXY)
    made.start(rig.options(ports))
    load = rig.Load(ports)
    asyncio.run(load.at_once(20))
    assert load.failed() == []


def test_new_settings_reach_a_haproxy_whose_sockets_nobody_else_holds(tmp_path: Path) -> None:
    """As where the facade and the supervisor were killed together."""
    with rig.a_gateway(tmp_path) as (made, ports):
        places = GatewayPaths.of(tmp_path / "gateway")
        (haproxy,) = processes.find(places, processes.HAPROXY)
        _bereave(made, places)
        assert processes.find(places, processes.HAPROXY) == (haproxy,)
        made.start(rig.options(ports, compress_answers=True))
        assert processes.find(places, processes.HAPROXY) not in ((), (haproxy,))
        assert made.missing() == ()


def test_sockets_that_haproxy_alone_had_are_held_by_others_after_its_death(tmp_path: Path) -> None:
    with rig.a_gateway(tmp_path) as (made, _):
        places = GatewayPaths.of(tmp_path / "gateway")
        _bereave(made, places)
        (first,), (supervisor,) = (
            processes.find(places, r) for r in (processes.FACADE, processes.SUPERVISOR)
        )
        _kill(*processes.find(places, processes.HAPROXY))
        until(lambda: made.missing() == () and processes.find(places, processes.FACADE) != (first,))
        _kill(supervisor)
        _await_supervisor_with_sockets(places)


def _bereave(made: HaproxyGateway, places: GatewayPaths) -> None:
    """Facade and supervisor are killed together, so that HAProxy alone has the sockets, and come back."""
    (supervisor,), (facade,) = (processes.find(places, r) for r in (processes.SUPERVISOR, processes.FACADE))
    os.kill(supervisor, signal.SIGSTOP)
    _kill(facade)
    _kill(supervisor)
    assert made.missing() == (processes.FACADE, processes.SUPERVISOR)
    made.restore()
    until(lambda: made.missing() == ())


def _await_supervisor_with_sockets(places: GatewayPaths) -> None:
    """Until the only one has those of clients, and of the facade."""

    def has() -> bool:
        lines = []
        with contextlib.suppress(psutil.NoSuchProcess):
            lines = [psutil.Process(pid).cmdline() for pid in processes.find(places, processes.SUPERVISOR)]
        # Of one that just ends the line is empty.
        held = [line[-6:-5] + line[-3:-2] for line in lines]
        return held == [[str(places.state), "--facade"]] and not processes.supervisor_is_missing(places)

    until(has)


def test_haproxy_killed_after_a_redirect_loses_what_it_held_and_nothing_goes_back(
    gateway: Running, pair: Pair, home: Path
) -> None:
    made, ports = gateway
    places = GatewayPaths.of(home / "gateway")
    one, two = pair["one"].backend, pair["two"].backend
    # No backup: where a host holds HAProxy up at a bad moment it takes a living server for a slow one.
    made.commit({"echo": Route((one,))})
    load = rig.Load(ports)
    turns: list[Turn] = []

    with rig.under_load(partial(load.anew, 60)):
        since = time.monotonic()
        for before, after in ((one, two), (two, one)):
            until(lambda b=before, s=since: len(load.answered(b.server, s)) >= ANSWERS)
            redirected = time.monotonic()
            made.commit({"echo": Route((after,))})
            pid = rig.only(places, processes.HAPROXY)
            killed = time.monotonic()
            _kill(pid)
            since = time.monotonic()
            turns.append(Turn(after.server, redirected, killed, since))
        until(lambda: len(load.answered(one.server, since)) >= ANSWERS)
    assert [o for o in load.failed() if not any(turn.held(o) for turn in turns)] == []
    ends = [*(turn.redirected for turn in turns[1:]), time.monotonic()]
    for turn, end in zip(turns, ends, strict=True):
        assert {o.server for o in turn.answered(load) if o.ended < end} == {turn.server}


@dataclass(frozen=True)
class Turn:
    """A redirect to `server` and a kill right after it: monotonic times."""

    server: str
    redirected: float
    killed: float
    gone: float

    def held(self, outcome: rig.Outcome) -> bool:
        """Whether its connection may have been one of what was killed."""
        return self.killed <= outcome.ended and outcome.started <= self.gone

    def answered(self, load: rig.Load) -> list[rig.Outcome]:
        """What was sent after the redirect was done and had an answer."""
        return [o for o in load.outcomes if o.started >= self.killed and o.error is None]


def _kill(pid: int) -> None:
    """Returns once it is gone."""
    handle = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([handle], [], [], 10)[0]
    finally:
        os.close(handle)


def test_a_commit_that_was_cut_short_is_made_whole_by_the_next(
    fresh: Running, pair: Pair, tmp_path: Path
) -> None:
    made, _ = fresh
    made.commit({"echo": Route((pair["one"].backend,))})
    places = GatewayPaths.of(tmp_path / "gateway")
    runtime = RuntimeSocket(places.runtime_socket)
    one = pair["one"].backend.instance
    broken = (f"set server h_0/{one} state maint", "add server h_5/left 127.0.0.1:1")
    runtime.run([*broken, f"set map {places.checks_map} generation -1"])
    routes = {"echo": Route((pair["one"].backend,)), "slow": Route((pair["two"].backend,))}
    made.commit(routes)
    assert [runtime.map_value(places.models_map, e) for e in ("echo", "slow", "none")] == ["0", "1", None]
    (state,) = [
        row.split() for row in runtime.ask("show servers state h_0").splitlines() if f" {one} " in row
    ]
    assert state[5] == "2", "running; the 4 that may stand behind it only says how it was configured"
    assert state[6] in {"0", "4"}


def test_a_facade_that_cannot_read_the_table_gives_way_to_the_present_one(
    gateway: Running, pair: Pair, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One from before an upgrade: it lives, answers, and refuses every table of this version."""
    made, ports = gateway
    monkeypatch.setattr(startup, "_RELOAD_DEADLINE_S", 2.0)  # stopped, it is killed after that
    places = GatewayPaths.of(home / "gateway")
    old = rig.only(places, processes.FACADE)
    os.kill(old, signal.SIGSTOP)
    places.control_socket.unlink()
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(places.control_socket))
        door.listen()
        answering = threading.Thread(target=refuse_once, args=(door,))
        answering.start()
        made.commit({"echo": Route((pair["one"].backend,))})
        answering.join(5.0)
    assert old not in processes.find(places, processes.FACADE)
    made.start(rig.options(ports))
    assert made.routes() == {"echo": Route((pair["one"].backend,))}


def refuse_once(door: socket.socket) -> None:
    asked, _ = door.accept()
    with asked:
        asked.recv(4096)
        asked.sendall(b'{"error": "slots.json: unknown field"}\n')


def test_a_taken_port_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    http_port, grpc_port, metrics_port = free_ports(3)
    with socket.socket() as taken:
        taken.bind((rig.HOST, grpc_port))
        taken.listen(1)
        gateway = HaproxyGateway(tmp_path / "gateway")
        with pytest.raises(GatewayError, match=f"port {grpc_port} "):
            gateway.start(rig.options(rig.Ports(http_port, grpc_port, metrics_port)))
    assert processes.find(GatewayPaths.of(tmp_path / "gateway"), processes.SUPERVISOR) == ()


def test_a_running_gateway_does_not_refuse_what_it_allowed(
    gateway: tuple[HaproxyGateway, rig.Ports],
) -> None:
    made, ports = gateway
    with pytest.raises(GatewayError, match="runs with fleet-wide calls"):
        made.start(rig.options(ports, fleet_wide_calls=False))


def test_stop_leaves_nothing_and_may_be_repeated(tmp_path: Path) -> None:
    with rig.a_gateway(tmp_path) as (made, _):
        places = GatewayPaths.of(tmp_path / "gateway")
        made.stop()
        made.stop()
        for role in (*processes.KEPT_UP, processes.SUPERVISOR):
            assert processes.find(places, role) == ()
        assert not places.state.exists()
        assert not places.sockets.exists()


def test_stop_ends_a_supervisor_that_the_facade_has_just_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig.a_gateway(tmp_path) as (made, _):
        places = GatewayPaths.of(tmp_path / "gateway")
        (facade,) = processes.find(places, processes.FACADE)
        end = processes.end

        def end_late(pids: Sequence[int], *, grace_s: float) -> None:
            if facade in pids:
                processes.start_supervisor(places)
                until(lambda: processes.find(places, processes.HAPROXY) != ())
            end(pids, grace_s=grace_s)

        monkeypatch.setattr(processes, "end", end_late)
        made.stop()
        assert [processes.find(places, role) for role in processes.ALL] == [()] * len(processes.ALL)


def test_a_long_state_directory_gets_short_sockets(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    with rig.a_gateway(deep) as (made, _):
        assert made.routes() == {}
    assert not GatewayPaths.of(deep / "gateway").sockets.exists()


def test_without_haproxy_the_way_to_get_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "_MORE_PATHS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool, match="apt-get install haproxy"):
        HaproxyGateway(tmp_path / "gateway").start(rig.options(rig.Ports(1, 2, 3)))
