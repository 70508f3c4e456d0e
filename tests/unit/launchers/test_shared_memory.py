"""What is removed from /dev/shm, which every user of the host writes to."""

import errno
import mmap
import os
import subprocess
from pathlib import Path

import pytest

from controlplane.domain.errors import NotNow
from launchers.host import shared_memory


def region(folder: Path, server: str = "0" * 12, name: str = "a") -> Path:
    path = folder / f"trisect~f~{server}~{name}"
    path.write_bytes(bytes(mmap.PAGESIZE))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "shm"
    made.mkdir()
    return made


def test_only_regions_of_dead_servers_of_this_fleet_are_removed(folder: Path) -> None:
    dead, alive = region(folder), region(folder, "1" * 12)
    other = folder / "trisect~f2~000000000000~a"
    other.write_bytes(b"")
    assert shared_memory.sweep("f", {"1" * 12}, folder) == [str(dead)]
    assert sorted(folder.iterdir()) == sorted([alive, other])


def test_a_region_that_a_process_uses_stays_whoever_started_that_process(folder: Path) -> None:
    used, left = region(folder, name="used"), region(folder, name="left")
    with used.open("r+b") as stream, mmap.mmap(stream.fileno(), mmap.PAGESIZE):
        assert shared_memory.sweep("f", set(), folder) == [str(left)]
        assert shared_memory.remove("trisect~f~", folder) == []
    assert shared_memory.remove("trisect~f~", folder) == [str(used)]


def test_what_cannot_be_removed_stops_nothing(folder: Path) -> None:
    # A folder stands for another user's file: unlinking either fails.
    (folder / "trisect~f~000000000000~a").mkdir()
    (folder / "trisect~f~000000000000~b").symlink_to("/nonexistent")
    os.mkfifo(folder / "trisect~f~000000000000~c")
    left = region(folder, name="d")
    removed = shared_memory.sweep("f", set(), folder)
    assert str(left) in removed
    assert [p.name for p in folder.iterdir()] == ["trisect~f~000000000000~a"]


@pytest.mark.parametrize("user", [0, 4242])
def test_a_server_sees_a_folder_of_its_own(user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The other way, which root can go too: namespaces of a user, without capabilities outside.
    monkeypatch.setattr(os, "geteuid", lambda: user)
    start = shared_memory.own()
    if not start:
        pytest.skip("CAPABILITY MISSING: no namespace can be made here")
    made = f"/dev/shm/trisect-own-{os.getpid()}"
    told = subprocess.run([*start, "sh", "-c", f"echo x > {made}; ls -A /dev/shm"], capture_output=True)
    assert (told.stdout.split(), told.stderr) == ([Path(made).name.encode()], b"")
    assert not Path(made).exists()


def test_a_namespace_that_could_not_be_made_once_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    shared_memory._tried.cache_clear()
    fails = tmp_path / "unshare"
    fails.write_text("#!/bin/sh\nexit 1\n")
    fails.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path), prepend=":")
        assert shared_memory.own() == ()
    fails.write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert shared_memory.own() != ()
    shared_memory._tried.cache_clear()


def test_nothing_is_removed_while_processes_cannot_be_looked_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = region(folder)

    def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", none_left)
        with pytest.raises(NotNow):
            shared_memory.sweep("f", set(), folder)
    assert shared_memory.sweep("f", set(), folder) == [str(left)]
