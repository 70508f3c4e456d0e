"""What only plain processes can meet."""

import contextlib
import dataclasses
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from background import until
from launcher_rig import HANGING, Fleet, ProcessEngine, has_batch, infer, live

from controlplane.domain.errors import EngineError, LaunchTimeout, MissingTool
from controlplane.domain.fleet import Server, ServerState
from launchers import process
from launchers.host import process_table, server_sockets
from launchers.process import ProcessLauncher
from launchers.triton import labels, program

pytestmark = pytest.mark.e2e


@pytest.fixture
def engine(tmp_path: Path) -> ProcessEngine:
    return ProcessEngine(tmp_path / "state")


def test_a_killed_server_leaves_only_what_sweep_removes(fleet: Fleet) -> None:
    # Its clients share memory with it, so its regions are in the host's folder.
    spec = dataclasses.replace(fleet.spec(), fleet_wide_calls=True)
    fleet.engine.kill(fleet.start(spec))
    running = [s for s in fleet.launcher.servers(fleet.name) if s.state is ServerState.RUNNING]
    assert running == []
    # Its models' processes may have removed theirs, once they saw that it is dead.
    region = Path("/dev/shm") / f"{labels.memory_prefix(spec)}left"
    region.touch()
    removed = fleet.launcher.sweep(fleet.name)
    assert any(str(region) in what for what in removed), removed
    assert fleet.launcher.servers(fleet.name) == ()
    assert fleet.leftovers() == []


def test_a_killed_server_can_be_started_again_unswept(fleet: Fleet) -> None:
    spec = fleet.spec()
    fleet.engine.kill(fleet.start(spec))
    assert infer(fleet.start(spec)) == [0.0, 0.0]


def test_a_start_whose_folder_another_programs_sweep_removed_is_tried_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, removed = server_sockets.close, []

    def close_and_sweep(folder: Path) -> None:
        close(folder)
        if not removed:
            server_sockets.sweep(folder, (), ())
            removed.append(folder)

    monkeypatch.setattr(server_sockets, "close", close_and_sweep)
    assert infer(fleet.start(fleet.spec())) == [0.0, 0.0]
    assert removed


def test_a_server_whose_sockets_were_removed_is_started_anew(fleet: Fleet) -> None:
    first, other = fleet.start(fleet.spec()), fleet.start(fleet.spec("other"))
    shutil.rmtree(server_sockets.folder_of(first))
    again = fleet.start(first.spec, deadline_s=20.0)
    assert again.id != first.id
    # The folder is there again, and the socket of this one is not.
    assert fleet.start(other.spec, deadline_s=20.0).id != other.id
    assert infer(again) == [0.0, 0.0]


STARTER = """
import pickle, signal, sys
from pathlib import Path
from launchers.process import ProcessLauncher
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a script runs in the background
spec = pickle.loads(bytes.fromhex(sys.argv[2]))
print("starting", flush=True)
ProcessLauncher(Path(sys.argv[1])).start(spec, deadline_s=60)
print("started", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("killed_at", ["starting", "started"])
def test_a_killed_program_leaves_servers_the_next_one_takes_over(
    fleet: Fleet, tmp_path: Path, killed_at: str
) -> None:
    spec = fleet.spec()
    command = [sys.executable, "-c", STARTER, str(tmp_path / "state"), pickle.dumps(spec).hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        while program.stdout.readline().strip() != killed_at:
            assert program.poll() is None
        program.kill()
    server = fleet.start(spec)
    assert infer(server) == [0.0, 0.0]
    assert fleet.launcher.servers(fleet.name) == (server,)


def await_loading(program: subprocess.Popen[str], log: Path) -> None:
    """Until the server that this program starts loads its model; the program gives up by itself."""
    while not log.exists() or "loading: spin" not in log.read_text(errors="replace"):
        assert program.poll() is None
        time.sleep(0.01)


def test_what_a_killed_program_left_hanging_is_removed(fleet: Fleet, tmp_path: Path) -> None:
    spec = fleet.spec(source=HANGING)
    command = [sys.executable, "-c", STARTER, str(tmp_path / "state"), pickle.dumps(spec).hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        await_loading(program, tmp_path / "state" / fleet.name / "logs" / f"{spec.name}.log")
        program.kill()
    assert [s.name for s in fleet.launcher.servers(fleet.name)] == [spec.name]
    with pytest.raises(LaunchTimeout, match="it is removed"):
        fleet.start(spec, deadline_s=1)
    assert fleet.leftovers() == []


def test_interrupting_a_start_leaves_nothing(fleet: Fleet, tmp_path: Path) -> None:
    spec = fleet.spec(source=HANGING)
    command = [sys.executable, "-c", STARTER, str(tmp_path / "state"), pickle.dumps(spec).hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        program.stdout.readline()
        await_loading(program, tmp_path / "state" / fleet.name / "logs" / f"{spec.name}.log")
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=60)
    assert fleet.leftovers() == []


def test_without_any_mechanism_the_share_is_said_to_be_unenforced(fleet: Fleet, tmp_path: Path) -> None:
    fleet.launcher = ProcessLauncher(tmp_path / "state", mechanisms=())
    assert fleet.launcher.enforcement() is None
    server = fleet.start(fleet.spec(percent=20))
    assert server.enforced_by is None
    used = fleet.launcher.usage(server)
    assert (used.periods, used.throttled_periods) == (None, None)
    assert used.cpu_seconds is not None
    assert used.cpu_seconds > 0
    assert fleet.launcher.quota_use(server) is None


def test_servers_are_pinned_and_see_little_of_our_environment(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "very secret")
    before = os.sched_getaffinity(0)
    core = max(before)
    fleet.start(fleet.spec(device=f"cpu-{core}"))
    assert os.sched_getaffinity(0) == before
    members = process_table.members(fleet=fleet.name)
    assert len(members) >= 2
    for member in members:
        for task in Path(f"/proc/{member.pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # a thread that has ended meanwhile
                assert os.sched_getaffinity(int(task.name)) == {core}
        assert "very secret" not in Path(f"/proc/{member.pid}/environ").read_text()
        assert os.getsid(member.pid) != os.getsid(0)


def test_a_state_directory_that_cannot_be_written(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    fleet.launcher = ProcessLauncher(tmp_path / "file")
    with pytest.raises(EngineError, match=r"could not be started: .*Not a directory"):
        fleet.start(fleet.spec())
    assert fleet.leftovers() == []


def test_no_triton(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(program.HOME_VARIABLE, str(tmp_path))
    with pytest.raises(MissingTool, match="make setup"):
        fleet.start(fleet.spec())
    (missing,) = [c for c in fleet.launcher.capabilities() if c.name == "triton"]
    assert not missing.available
    assert "make setup" in (missing.remedy or "")
    assert fleet.leftovers() == []


def test_a_server_whose_program_is_not_loaded_yet_is_no_dead_one(fleet: Fleet, tmp_path: Path) -> None:
    server = Server("", fleet.spec(), ServerState.RUNNING, "", 0, 0, 0)
    os.mkfifo(tmp_path / "program")
    # Its shell waits for the fifo, as it would for a program on a slow disk.
    shell = subprocess.Popen(
        [*process_table.DETACHED, ".", str(tmp_path / "program")],
        env={**os.environ, **labels.environment_of(server)},
        start_new_session=True,
    )
    shell.wait(30)
    present = partial(process_table.members, name=server.name)
    try:
        until(lambda: len(present()) == 2, 30.0)
        assert fleet.launcher.servers(fleet.name) == ()
        fleet.launcher.sweep(fleet.name)
        assert len(present()) == 2, "it starts on"
    finally:
        process_table.kill_all(present)


def test_old_logs_go(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_KEPT_LOGS", 2)
    logs = tmp_path / "state" / fleet.name / "logs"
    logs.mkdir(parents=True)
    for i in range(4):
        (logs / f"{i}.log").write_text("")
        os.utime(logs / f"{i}.log", (i, i))
    fleet.start(fleet.spec())
    assert sorted(p.name for p in logs.iterdir()) == ["2.log", "3.log", f"{fleet.name}.p.active.rev1.log"]


def test_a_server_ends_with_all_processes_of_its_host(fleet: Fleet) -> None:
    """At a shutdown of the host each process gets SIGTERM."""
    server = fleet.start(fleet.spec())
    for member in process_table.members(name=server.name):
        process_table.send(member, signal.SIGTERM)
    (triton,) = (m for m in process_table.members(name=server.name) if m.leader)
    assert process_table.wait_gone(triton, 30)


def test_a_server_starts_on_a_full_disk(fleet: Fleet, engine: ProcessEngine, tmp_path: Path) -> None:
    """On a real file system, which makes no folder any more."""
    image = tmp_path / "disk"
    engine.state.mkdir()
    image.touch()
    os.truncate(image, 30 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, engine.state], check=False).returncode != 0:
        pytest.skip("CAPABILITY MISSING: this user may mount no disk")
    try:
        fleet.launcher.stop(fleet.start(fleet.spec("before")), drain_s=0.0)
        full = live(fleet, 3, "full")
        with (engine.state / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while filler.write(bytes(512)):
                pass
        with pytest.raises(OSError, match="No space left"):
            (engine.state / "folder").mkdir()
        server = fleet.start(full)
        assert infer(server) == [0.0, 0.0]
        (listed,) = fleet.launcher.servers(fleet.name)
        assert listed.spec.batches == (), "they cannot be changed"
        assert has_batch(server, 3)
        fleet.launcher.stop(server, drain_s=0.0)
    finally:
        subprocess.run(["umount", "--lazy", engine.state], check=True)
