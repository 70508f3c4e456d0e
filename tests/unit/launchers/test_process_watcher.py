"""Deaths of real processes that are called like a server's Triton and its models."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import build
import pytest
from background import until
from no_descriptors import without_descriptors

from controlplane.domain.errors import NotNow
from controlplane.domain.fleet import Server
from controlplane.domain.observation import Health, News, out_of_memory
from launchers.host import process_table
from launchers.host.process_table import Member, ServerProcess
from launchers.host.process_watcher import ProcessWatcher

SPEC = build.spec(fleet=f"ends{os.getpid()}")
NAME = SPEC.name
TRITON = """
import os, signal, subprocess, sys, time
stub = sys.argv[1]
children = [subprocess.Popen([stub, seconds]) for seconds in ("60", "60", "0")]
print(*(child.pid for child in children), flush=True)
for _ in sys.stdin:
    children[0].kill()
    children[0].wait()
    print("waited", flush=True)
time.sleep(60)
"""
"""Reaps no child but the first, once a line comes; the third ends well by itself."""


@dataclass
class Triton:
    process: subprocess.Popen[str]
    waited_for: int
    model: int
    ended_well: int

    @property
    def server(self) -> Server:
        return build.server(SPEC, str(self.process.pid))

    @property
    def processes(self) -> tuple[ServerProcess, ...]:
        """Its models', and one that is another's child."""
        pids = (self.waited_for, self.model, self.ended_well, os.getpid())
        return tuple(ServerProcess(pid, NAME, self.process.pid) for pid in pids)

    def unload(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "waited\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def kill_model(self) -> None:
        handle = os.pidfd_open(self.model)
        os.kill(self.model, signal.SIGKILL)
        select.select([handle], [], [], 30)
        os.close(handle)


@pytest.fixture
def triton(tmp_path: Path) -> Iterator[Triton]:
    stub = tmp_path / "triton_python_backend_stub"
    stub.symlink_to("/bin/sleep")
    command = ["tritonserver", "-c", TRITON, str(stub), f"--id={NAME}"]
    with subprocess.Popen(
        command,
        executable=sys.executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield Triton(process, *map(int, process.stdout.readline().split()))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def pid_of(server: Server) -> int:
    return int(server.id or -1)


@contextlib.contextmanager
def watching(
    listed: Callable[[], tuple[ServerProcess, ...]] = tuple,
    pid_of: Callable[[Server], int | None] = pid_of,
    memory_kills: Callable[[int], int] = lambda _: 0,
) -> Iterator[ProcessWatcher]:
    with contextlib.closing(ProcessWatcher(listed, pid_of, memory_kills)) as made:
        yield made


def heard(watcher: ProcessWatcher, server: Server) -> tuple[News, ...]:
    return until(lambda: watcher.news((server,)))


def test_a_triton_that_ends_is_told_once_and_only_while_it_is_asked_about(triton: Triton) -> None:
    one = triton.server
    with watching() as watcher:
        assert watcher.news((one,)) == ()
        triton.kill()
        assert heard(watcher, one) == (News((NAME,), "its process ended", certain=True),)
        assert watcher.news((one,)) == ()
        assert watcher.news(()) == ()
        assert len(watcher.news((one,))) == 1, "asked about anew: it is still gone"


def test_a_models_process_that_died_impairs_its_server_and_one_that_was_ended_does_not(
    triton: Triton,
) -> None:
    one, processes = triton.server, triton.processes
    with (
        watching(lambda: processes) as watcher,
        watching(lambda: processes, memory_kills=lambda _: 1) as short,
    ):
        assert watcher.news((one,)) == short.news((one,)) == ()
        triton.unload()
        assert watcher.news((one,)) == (), "its parent ended it: a model that was unloaded"
        triton.kill_model()
        assert [(n.servers, n.health) for n in heard(watcher, one)] == [((NAME,), Health.IMPAIRED)]
        assert watcher.news((one,)) == ()
        # Its group counts the kernel's kill.
        (told,) = short.news((one,))
        assert (told.reason, told.health) == (out_of_memory(one), Health.IMPAIRED)
        triton.kill()
        assert [n.health for n in heard(watcher, one)] == [Health.GONE]


def test_a_models_process_that_its_triton_takes_with_it_is_no_news_of_its_own(
    triton: Triton, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, whose other processes are dead a moment before the first one is."""
    one, processes = triton.server, triton.processes
    assert not process_table.is_ending(triton.process.pid)
    with watching(lambda: processes) as watcher:
        assert watcher.news((one,)) == ()
        with monkeypatch.context() as patch:
            patch.setattr(process_table, "is_ending", {triton.process.pid}.__contains__)
            triton.kill_model()
            assert watcher.news((one,)) == ()
        triton.kill()
        assert process_table.is_ending(triton.process.pid)
        assert [n.health for n in heard(watcher, one)] == [Health.GONE]
        assert watcher.news((one,)) == ()


def test_a_models_process_that_was_dead_when_first_listed_impairs_its_server(triton: Triton) -> None:
    triton.kill_model()
    listed = process_table.server_processes({triton.process.pid: NAME, os.getpid(): "no Triton"})
    assert {p.pid for p in listed} >= {triton.process.pid, triton.waited_for, triton.model}
    with watching(lambda: listed) as watcher:
        assert [(n.servers, n.health) for n in watcher.news((triton.server,))] == [((NAME,), Health.IMPAIRED)]
        assert watcher.news((triton.server,)) == ()


def test_the_end_of_a_listed_triton_is_certain_and_one_that_was_never_held_is_none(triton: Triton) -> None:
    listed = process_table.server_processes({triton.process.pid: NAME})
    with watching(lambda: listed, lambda _: None) as watcher:
        assert watcher.news((triton.server,)) == ()
        triton.kill()
        assert [(n.health, n.certain) for n in watcher.news((triton.server,))] == [(Health.GONE, True)]
        assert watcher.news((triton.server,)) == ()
    with watching(lambda: listed, lambda _: None) as watcher:
        assert watcher.news((triton.server,)) == (), "its successor of that name may run"


def held_processes() -> int:
    """Handles on processes that are open here; other files may be closed behind a test at any moment."""
    held = 0
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            held += os.readlink(entry.path) == "anon_inode:[pidfd]"
    return held


def test_a_pid_that_is_another_process_by_now_or_never_was() -> None:
    others = build.server(SPEC, str(os.getpid()))
    elsewhere = replace(SPEC, labels=replace(SPEC.labels, partition="q"))
    never = replace(others, id="", spec=elsewhere)
    with watching() as watcher:
        told = watcher.news((others, never))
        assert {name for news in told for name in news.servers} == {others.name, never.name}
    before = held_processes()
    with watching() as watcher:
        for _ in range(20):
            watcher.news((others,))
            watcher.news(())
    assert held_processes() == before


def test_without_descriptors_no_living_process_counts_as_gone_and_no_death_is_missed(triton: Triton) -> None:
    one, pid = triton.server, triton.process.pid
    with watching() as watcher:
        with without_descriptors():
            assert watcher.news((one,)) == ()
            for look in (
                lambda: process_table.members(name=NAME),
                lambda: process_table.find(pid),
                lambda: process_table.server_processes({pid: NAME}),
                lambda: process_table.kill_all(
                    lambda: (Member(pid, NAME, "f", "", leader=True, starter=False),)
                ),
            ):
                with pytest.raises(NotNow, match="Too many open files"):
                    look()
            triton.kill()
        assert [news.servers for news in watcher.news((one,))] == [(NAME,)]


def test_a_models_process_whose_end_cannot_be_read_now_is_reported_later(
    triton: Triton, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: str) -> bytes:
        raise NotNow("no descriptor is free")

    one, processes = triton.server, triton.processes
    with watching(lambda: processes) as watcher:
        assert watcher.news((one,)) == ()
        triton.kill_model()
        with monkeypatch.context() as patch:
            patch.setattr(process_table, "read", unreadable)
            assert watcher.news((one,)) == ()
        assert [(n.servers, n.health) for n in watcher.news((one,))] == [((NAME,), Health.IMPAIRED)]
