"""Deaths of real processes that carry a server's labels."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from no_descriptors import without_descriptors

from controlplane.domain.errors import NotNow
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.domain.observation import Health, News, out_of_memory
from launchers.host import process_table
from launchers.host.process_ends import ListedEnds, TritonEnds
from launchers.host.process_table import Listed
from launchers.triton import labels

pytestmark = pytest.mark.unit


def server(partition: str, pid: str) -> Server:
    spec = ServerSpec(
        Labels(f"ends{os.getpid()}", "h", partition, Role.ACTIVE, "r"), "/m", ("m",), "cpu-0", 50
    )
    return Server(pid, spec, ServerState.RUNNING, "127.0.0.1", 1, 2, 3)


def test_a_process_that_ends_is_told_once_and_only_while_it_is_asked_about() -> None:
    nameless = server("p", "")
    told = {**os.environ, **labels.environment_of(nameless)}
    with subprocess.Popen(["sleep", "60"], env=told) as process:
        one = server("p", str(process.pid))
        ends = TritonEnds()
        try:
            assert ends.news((one,)) == ()
            process.kill()
            process.wait()
            deadline = time.monotonic() + 30
            while not (news := ends.news((one,))):
                assert time.monotonic() < deadline
            assert news == (News((one.name,), "its process ended", certain=True),)
            assert ends.news((one,)) == ()
            assert ends.news(()) == ()
            assert len(ends.news((one,))) == 1, "asked about anew: it is still gone"
        finally:
            process.kill()
            ends.close()


# A parent that waits for no child, but for the first once it is told to.
PARENT = """
import os, signal, sys, time
commands = [("sleep", "60"), ("sleep", "60"), ("true",)]
children = [os.spawnlp(os.P_NOWAIT, command[0], *command) for command in commands]
print(*children, flush=True)
if sys.stdin.readline():
    os.kill(children[0], signal.SIGKILL)
    os.waitpid(children[0], 0)
    print("waited", flush=True)
time.sleep(60)
"""


def test_a_models_process_that_died_impairs_its_server_and_one_that_was_ended_does_not() -> None:
    told = {**os.environ, **labels.environment_of(server("p", ""))}
    command = [sys.executable, "-c", PARENT]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=told, text=True, start_new_session=True, **pipes) as triton:  # type: ignore[call-overload]
        one = server("p", str(triton.pid))
        waited_for, killed, well = map(int, triton.stdout.readline().split())
        others_child = os.getpid()
        stubs = {pid: Listed(one.name, triton.pid) for pid in (waited_for, killed, well, others_child)}
        ends = ListedEnds(lambda: stubs)
        in_container = ListedEnds(lambda: stubs, {triton.pid: 1}.__getitem__)
        try:
            assert ends.news((one,)) == in_container.news((one,)) == ()
            triton.stdin.write("\n")
            triton.stdin.flush()
            assert triton.stdout.readline() == "waited\n"
            assert ends.news((one,)) == (), "its parent ended it: a model that was unloaded"
            os.kill(killed, signal.SIGKILL)
            deadline = time.monotonic() + 30
            while not (news := ends.news((one,))):
                assert time.monotonic() < deadline
            assert [(n.servers, n.health) for n in news] == [((one.name,), Health.IMPAIRED)]
            assert ends.news((one,)) == ()
            # Its group counts the kernel's kill.
            (told,) = in_container.news((one,))
            assert (told.reason, told.health) == (out_of_memory(one), Health.IMPAIRED)
        finally:
            os.killpg(triton.pid, signal.SIGKILL)
            ends.close()


LISTED = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.argv[1], "60"])
print(child.pid, flush=True)
sys.stdin.readline()
child.kill()
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
print("a zombie", flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def triton_with_a_stub(name: str, directory: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that is called like Triton, and its child, called like a model's, by its pid."""
    stub = directory / "triton_python_backend_stub"
    stub.symlink_to("/bin/sleep")
    command = ["tritonserver", "-c", LISTED, str(stub), f"--id={name}"]
    with subprocess.Popen(
        command, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as triton:
        assert triton.stdout is not None
        child = int(triton.stdout.readline())
        try:
            yield triton, child
        finally:
            triton.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def test_a_models_process_that_was_dead_when_first_listed_impairs_its_server(tmp_path: Path) -> None:
    one = server("p", "")
    with triton_with_a_stub(one.name, tmp_path) as (triton, child):
        assert triton.stdin is not None
        assert triton.stdout is not None
        triton.stdin.write("\n")
        triton.stdin.flush()
        assert triton.stdout.readline() == "a zombie\n"
        listed = process_table.listed({triton.pid: one.name, os.getpid(): "no Triton"})
        assert listed == {triton.pid: Listed(one.name, triton.pid), child: Listed(one.name, triton.pid)}
        with contextlib.closing(ListedEnds(lambda: listed)) as ends:
            assert [(n.servers, n.health) for n in ends.news((one,))] == [((one.name,), Health.IMPAIRED)]
            assert ends.news((one,)) == ()


def test_the_end_of_a_listed_triton_is_certain(tmp_path: Path) -> None:
    one = server("p", "")
    with triton_with_a_stub(one.name, tmp_path) as (triton, _):
        listed = process_table.listed({triton.pid: one.name})
        with contextlib.closing(ListedEnds(lambda: listed)) as ends:
            assert ends.news((one,)) == ()
            triton.kill()
            triton.wait()
            (news,) = ends.news((one,))
            assert (news.servers, news.health, news.certain) == ((one.name,), Health.GONE, True)
            assert ends.news((one,)) == ()


def held_processes() -> int:
    """Handles on processes that are open here; other files may be closed behind a test at any moment."""
    held = 0
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            held += os.readlink(entry.path) == "anon_inode:[pidfd]"
    return held


def test_a_pid_that_is_another_process_by_now_or_never_was() -> None:
    ends = TritonEnds()
    others, never = server("a", str(os.getpid())), server("b", "")
    assert {name for news in ends.news((others, never)) for name in news.servers} == {others.name, never.name}
    ends.close()
    before = held_processes()
    ends = TritonEnds()
    for _ in range(20):
        ends.news((others,))
        ends.news(())
    ends.close()
    assert held_processes() == before


def test_without_descriptors_no_living_process_counts_as_gone_and_no_death_is_missed() -> None:
    told = {**os.environ, **labels.environment_of(server("p", ""))}
    with subprocess.Popen(["sleep", "60"], env=told) as process:
        one = server("p", str(process.pid))
        member = process_table.Member(process.pid, one.name, "f", "", leader=True)
        ends = TritonEnds()
        try:
            with without_descriptors():
                assert ends.news((one,)) == ()
                for look in (
                    lambda: process_table.members(name=one.name),
                    lambda: process_table.find(process.pid),
                    lambda: process_table.listed({process.pid: one.name}),
                    lambda: process_table.kill_all(lambda: (member,)),
                ):
                    with pytest.raises(NotNow, match="Too many open files"):
                        look()
                process.kill()
            process.wait()
            assert [news.servers for news in ends.news((one,))] == [(one.name,)]
        finally:
            process.kill()
            ends.close()


def test_a_models_process_whose_end_cannot_be_read_now_is_reported_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreadable(_: str) -> bytes:
        raise NotNow("no descriptor is free")

    told = {**os.environ, **labels.environment_of(server("p", ""))}
    command = [sys.executable, "-c", PARENT]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=told, text=True, start_new_session=True, **pipes) as triton:  # type: ignore[call-overload]
        one = server("p", str(triton.pid))
        _, killed, _ = map(int, triton.stdout.readline().split())
        stubs = {killed: Listed(one.name, triton.pid)}
        ends = ListedEnds(lambda: stubs)
        try:
            assert ends.news((one,)) == ()
            handle = os.pidfd_open(killed)
            os.kill(killed, signal.SIGKILL)
            select.select([handle], [], [], 30)
            os.close(handle)
            with monkeypatch.context() as patch:
                patch.setattr(process_table, "read", unreadable)
                assert ends.news((one,)) == ()
            assert [(n.servers, n.health) for n in ends.news((one,))] == [((one.name,), Health.IMPAIRED)]
        finally:
            os.killpg(triton.pid, signal.SIGKILL)
            ends.close()
