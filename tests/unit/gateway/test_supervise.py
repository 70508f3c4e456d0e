import asyncio
import errno
import fcntl
import io
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from no_descriptors import without_descriptors

from controlplane.domain.errors import EngineError
from controlplane.files.fleets import FleetFiles
from controlplane.files.gateway import Restart, append_restart, read_restarts
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.files.waiting import wait_until
from controlplane.gateway import controller_keeper, processes, store, supervise
from controlplane.gateway.controller_keeper import ControllerKeeper
from controlplane.gateway.facade import __main__ as facade
from controlplane.gateway.processes import LABEL, ROLE_LABEL, Held, Listeners
from controlplane.gateway.running import RuntimeSocket
from controlplane.gateway.supervise import ManagedProcess, Supervisor, back_off_s, ended


def test_a_first_death_costs_no_wait_and_repeated_ones_ever_more() -> None:
    assert [back_off_s(deaths) for deaths in range(1, 6)] == [0.0, 0.05, 0.1, 0.2, 0.4]
    assert back_off_s(10**6) == 5.0


def test_what_a_full_disk_does_not_let_start_is_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> None:
        raise EngineError("haproxy.cfg cannot be written: No space left on device")

    process = ManagedProcess(processes.HAPROXY, refused)  # type: ignore[arg-type]
    supervisor = Supervisor(GatewayPaths.of(tmp_path), Held())
    supervisor._start(process)
    supervisor._start(process)
    assert (process.handle, process.deaths) == (None, 2)
    assert process.due_at > process.started_at
    assert "No space left" in capsys.readouterr().out


def test_a_process_that_dies_within_its_start_says_how(tmp_path: Path) -> None:
    def dead() -> subprocess.Popen[bytes]:
        child = subprocess.Popen(["sleep", "60"])
        child.terminate()
        child.wait()
        return child

    supervisor = Supervisor(GatewayPaths.of(tmp_path), Held())
    supervisor._start(ManagedProcess(processes.HAPROXY, dead))
    (told,) = read_restarts(GatewayPaths.of(tmp_path).restarts)
    assert told.reason == "ended by signal 15; started again at once"


def test_a_process_that_cannot_be_watched_for_want_of_descriptors_is_watched_later(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "30"]) as child:
        process = ManagedProcess(processes.FACADE, lambda: child)
        supervisor = Supervisor(GatewayPaths.of(tmp_path), Held())
        with without_descriptors():
            supervisor._start(process)
        assert (process.handle, process.deaths, child.poll()) == (None, 0, None)
        supervisor._start(process)
        assert process.handle is not None
        child.kill()
        supervisor._died(process)
    assert (process.child, process.deaths) == (None, 1)


def test_what_cannot_be_started_for_want_of_descriptors_is_no_death(tmp_path: Path) -> None:
    def refused() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    process = ManagedProcess(processes.FACADE, refused)  # type: ignore[arg-type]
    supervisor = Supervisor(GatewayPaths.of(tmp_path), Held())
    for _ in range(20):
        supervisor._start(process)
    assert process.deaths == 0
    assert process.due_at - process.started_at <= 2 * supervise._LACK_S


def test_a_renewal_that_fails_now_stays_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = GatewayPaths.of(tmp_path)
    places.make()
    listeners = Listeners.for_haproxy(places)
    supervisor = Supervisor(places, Held(clients=listeners))
    haproxy, present = supervisor._managed[0], "other"

    def refused(replaced: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    def still_due() -> bool:
        supervisor._renewal_due = False
        assert supervisor._renew_haproxy()
        return supervisor._renewal_due

    monkeypatch.setattr(supervisor._programs, "haproxy", refused)
    assert still_due(), "it does not answer"
    monkeypatch.setattr(RuntimeSocket, "variable", lambda *_: present)
    monkeypatch.setattr(store, "settings_of", lambda _: None)
    monkeypatch.setattr(store, "fingerprint", lambda *_: "wanted")
    assert still_due(), "it is not watched"
    haproxy.handle = 0
    assert still_due(), "the next one does not start"
    present = "wanted"
    assert not still_due()
    listeners.http.close()
    listeners.grpc.close()


def test_what_died_is_written_down_and_no_full_disk_stops_it(tmp_path: Path) -> None:
    supervisor = Supervisor(GatewayPaths.of(tmp_path), Held())
    supervisor._died(ManagedProcess(processes.FACADE, lambda: None))  # type: ignore[arg-type, return-value]
    supervisor._died(ManagedProcess(processes.MONITOR, lambda: None), "does not start: no room")  # type: ignore[arg-type, return-value]
    told = read_restarts(GatewayPaths.of(tmp_path).restarts)
    assert [(one.role, one.reason) for one in told] == [
        ("facade", "ended; started again at once"),
        ("monitor", "does not start: no room; started again at once"),
    ]
    assert [ended(-9), ended(3)] == ["ended by signal 9", "ended with 3"]
    Supervisor(GatewayPaths.of(tmp_path / "nowhere"), Held())._died(
        ManagedProcess(processes.FACADE, lambda: None)
    )  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_log_that_cannot_be_written_ends_no_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    class Refusing(io.StringIO):
        def flush(self) -> None:
            raise OSError(code, os.strerror(code))

    supervisor = Supervisor(GatewayPaths.of(tmp_path), Held())
    process = ManagedProcess(processes.FACADE, lambda: None)  # type: ignore[arg-type, return-value]
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", Refusing())
        supervisor._died(process)
    assert process.deaths == 1


def test_a_process_starts_where_its_log_cannot_be_opened(tmp_path: Path) -> None:
    places = GatewayPaths.of(tmp_path)
    places.log(processes.FACADE).mkdir()
    assert processes.spawn(places, processes.FACADE, ["true"]).wait() == 0


def test_requests_wait_for_a_facade_and_are_refused_once_it_died_young_too_often(tmp_path: Path) -> None:
    places = GatewayPaths.of(tmp_path)
    places.make()
    listeners = Listeners.for_haproxy(places)
    supervisor = Supervisor(places, Held(facade=listeners))
    process = ManagedProcess(processes.FACADE, lambda: None)  # type: ignore[arg-type, return-value]
    with listeners.http, listeners.grpc, socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(str(places.facade_http_socket))
        waiting.setblocking(False)
        for _ in range(supervise._PATIENT_DEATHS):
            process.started_at = time.monotonic()
            supervisor._died(process)
        with pytest.raises(BlockingIOError):
            waiting.recv(1)
        supervisor._died(process)
        waiting.setblocking(True)
        assert waiting.recv(1) == b""


def test_the_version_in_the_lock_is_rewritten_only_where_it_differs(tmp_path: Path) -> None:
    with (tmp_path / "supervisor.lock").open("a+b", buffering=0) as lock:
        for _ in range(2):
            supervise._write_version(lock)
            assert (tmp_path / "supervisor.lock").read_text() == processes.code_version()
    with (tmp_path / "supervisor.lock").open("rb", buffering=0) as unwritable:
        supervise._write_version(unwritable)


def test_restarts_stay_few_and_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "restarts.jsonl"
    for at_s in range(2000):
        append_restart(path, Restart(float(at_s), "facade", "ended by signal 9"))
    assert path.stat().st_size < 70_000
    with path.open("a") as stream:
        stream.write('{"at_s": 3')
    kept = read_restarts(path)
    assert kept[-1].at_s == 1999.0
    assert [one.at_s for one in kept] == [float(n) for n in range(2000 - len(kept), 2000)]
    assert read_restarts(tmp_path / "none") == ()


def test_a_log_is_trimmed_under_the_process_that_writes_it(tmp_path: Path) -> None:
    paths = GatewayPaths.of(tmp_path / "fleet" / "gateway")
    server = paths.fleet / "logs" / "fleet.p.active.r.log"
    for log in (paths.log("facade"), server):
        log.parent.mkdir(parents=True)
        with log.open("ab", buffering=0) as process:
            process.write(b"x" * (supervise._LOG_LIMIT_BYTES + 1))
            Supervisor(paths, Held())._tidy()
            process.write(b"later")
        assert log.read_bytes() == b"later"
        assert log.with_suffix(".log.1").stat().st_size > supervise._LOG_LIMIT_BYTES


@pytest.fixture
def files(tmp_path: Path) -> FleetFiles:
    found = FleetFiles(tmp_path / "trisect", "f")
    found.make()
    found.controller_lock.touch()
    return found


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    found: list[None] = []
    monkeypatch.setattr(ControllerKeeper, "_start", lambda _: found.append(None))
    return found


def test_a_killed_controller_is_started_at_once_and_again_after_ever_longer(
    files: FleetFiles, starts: list[None]
) -> None:
    keeper = ControllerKeeper(files)
    files.controller_kept.touch()
    seconds = [now for now in range(200) if keeper.look(float(now)) is not None]
    assert seconds == [0, 20, 60, 140]
    assert len(starts) == 4


def test_one_that_ran_for_long_is_started_at_once(files: FleetFiles, starts: list[None]) -> None:
    keeper = ControllerKeeper(files)
    files.controller_kept.touch()
    assert keeper.look(0.0) is not None
    with files.controller_lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for now in range(2, 16):
            assert keeper.look(float(now)) is None, "it runs"
    assert keeper.look(16.0) is not None
    assert len(starts) == 2


def test_what_others_run_is_theirs_and_is_told_once(files: FleetFiles, starts: list[None]) -> None:
    keeper = ControllerKeeper(files)
    assert keeper.look(0.0) is None, "it ended by itself"
    files.controller_pid.write_text("1\n")
    keeper = ControllerKeeper(files)
    told = [keeper.look(float(now)) for now in range(10)]
    assert "not started again" in str(told[0])
    assert told[1:] == [None] * 9
    assert starts == []


def test_a_kept_controller_is_started_where_and_as_it_ran(
    files: FleetFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRISECT_TRITON_HOME", "triton")
    controller_keeper.keep(files)
    monkeypatch.setenv("TRISECT_TRITON_HOME", "the supervisor's")
    monkeypatch.chdir("/")
    found = tmp_path / "found"
    show = (
        f"import os; open({str(found)!r}, 'w').write(os.getcwd() + ' ' + os.environ['TRISECT_TRITON_HOME'])"
    )
    monkeypatch.setattr(controller_keeper, "command", lambda files: [sys.executable, "-c", show])
    ControllerKeeper(files).look(0.0)
    assert wait_until(lambda: found.exists() and found.read_text() != "", deadline_s=30.0)
    assert found.read_text() == f"{tmp_path} triton"


def test_a_controller_is_no_process_of_the_gateway_and_finds_the_fleet(
    files: FleetFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`processes.find` knows the gateway's by these variables, and ends them."""
    monkeypatch.setenv(LABEL, "/state")
    monkeypatch.setenv(ROLE_LABEL, "supervisor")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    found = controller_keeper.environment(files)
    assert not {LABEL, ROLE_LABEL} & found.keys()
    assert Path(found["XDG_STATE_HOME"]) / "trisect" / "f" == files.directory
    assert found["PATH"] == os.environ["PATH"]


def test_a_host_that_refuses_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = GatewayPaths.of(tmp_path)
    places.supervisor_lock.touch()
    refusals: list[Exception] = [BlockingIOError("no process"), RuntimeError("can't start new thread")]

    async def run() -> None:
        started = asyncio.Event()

        async def refused(*_: object) -> None:
            if refusals:
                raise refusals.pop(0)
            started.set()

        monkeypatch.setattr(facade, "_LOOK_S", 0.0)
        monkeypatch.setattr(processes, "STARTING_S", 0.0)
        monkeypatch.setattr(asyncio, "to_thread", refused)
        keeping = asyncio.create_task(facade.keep_supervisor(places, Held()))
        try:
            await asyncio.wait_for(started.wait(), 30)
            assert not keeping.done()
        finally:
            keeping.cancel()

    asyncio.run(run())


@pytest.mark.parametrize("locked", [True, False])
def test_one_that_dies_soon_after_its_start_is_replaced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: bool
) -> None:
    living: list[int] = []
    monkeypatch.setattr(processes, "find", lambda *_: tuple(living))
    places = GatewayPaths.of(tmp_path)
    places.supervisor_lock.touch()
    monkeypatch.setattr(facade, "_LOOK_S", 0.01)
    monkeypatch.setattr(processes, "STARTING_S", 3600.0)

    async def run() -> None:
        starts: asyncio.Queue[None] = asyncio.Queue()

        async def started(*_: object) -> None:
            living[:] = [1]
            starts.put_nowait(None)

        monkeypatch.setattr(asyncio, "to_thread", started)
        keeping = asyncio.create_task(facade.keep_supervisor(places, Held()))
        try:
            for _ in range(2):
                await asyncio.wait_for(starts.get(), 30)
                with places.supervisor_lock.open() as held:
                    if locked:
                        fcntl.flock(held, fcntl.LOCK_EX)
                    await asyncio.sleep(0.1)
                    assert starts.empty(), "no other one is started while it lives, or has not begun to"
                living[:] = []
        finally:
            keeping.cancel()

    asyncio.run(run())
