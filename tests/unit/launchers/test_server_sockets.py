"""The folders of servers' sockets."""

import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import build
import pytest

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import OWN_FOLDER, Server, socket_path
from launchers.host import server_sockets
from launchers.triton.labels import digest

SPEC = build.spec("p", fleet="fleet")


def started(state: Path) -> tuple[Server, Path]:
    """A container, which has a folder of its own."""
    server = replace(build.server(SPEC), host=f"{server_sockets.new_host(state, SPEC)}{OWN_FOLDER}")
    folder = server_sockets.folder_of(server)
    assert folder is not None
    return server, folder


@pytest.fixture(params=["short", "long" * 30])
def state(request: pytest.FixtureRequest, nearby: Path) -> Iterator[Path]:
    state = nearby / request.param
    yield state
    shutil.rmtree(server_sockets.folder_of_fleet(state, "fleet"), ignore_errors=True)


def test_each_start_has_a_folder_that_other_users_cannot_enter_and_paths_that_fit(state: Path) -> None:
    server, folder = started(state)
    assert started(state)[1] != folder
    assert not folder.exists()
    server_sockets.make(folder, os.getuid(), os.getgid())
    assert [one.stat().st_mode & 0o777 for one in (folder, folder.parent)] == [0o700, 0o700]
    path = socket_path(server.host, server.http_port + 8000) or ""
    assert len(path) <= 97, "HAProxy's limit"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
    server_sockets.remove(state, SPEC)
    server_sockets.sweep(folder.parent, (), {"another"})
    assert list(folder.parent.iterdir()) == []
    server_sockets.sweep(folder.parent, (), set())
    assert not folder.parent.exists()


def test_starts_of_a_process_share_a_folder_and_no_path(state: Path) -> None:
    first, second = (replace(build.server(SPEC), host=server_sockets.new_host(state, SPEC)) for _ in range(2))
    folder = server_sockets.folder_of(first)
    assert folder == server_sockets.folder_of(second) == server_sockets.folder_of_fleet(state, "fleet")
    assert first.instance != second.instance
    server_sockets.close(folder)
    path = Path(socket_path(first.host, first.http_port + 8000) or "")
    path.touch()
    assert server_sockets.begun(folder) == (path,)
    server_sockets.remove(state, SPEC)
    assert list(folder.iterdir()) == []


def test_what_is_swept_is_of_no_server_and_no_start(state: Path) -> None:
    _, old, dead = folders = [started(state)[1] for _ in range(3)]
    for folder in folders:
        server_sockets.make(folder, os.getuid(), os.getgid())
    os.utime(old, (0, 0))
    (dead / "t:8000").touch()
    fleets = dead.parent
    found = server_sockets.begun(fleets)
    assert set(found) == {old, dead}
    server_sockets.sweep(fleets, found, {digest(SPEC.name)})
    assert [folder.exists() for folder in folders] == [True, True, True]
    server_sockets.sweep(fleets, found, set())
    assert [folder.exists() for folder in folders] == [True, False, False]


def test_a_folder_that_another_end_removed_meanwhile_is_closed_again(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = started(state)
    close = server_sockets.close_to_others

    def meanwhile(one: Path) -> str | None:
        if one == folder:
            folder.parent.rmdir()
        return close(one)

    monkeypatch.setattr(server_sockets, "close_to_others", meanwhile)
    server_sockets.make(folder, os.getuid(), os.getgid())
    assert folder.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_another_made_is_refused(state: Path, tmp_path: Path) -> None:
    _, folder = started(state)
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    folder.parent.symlink_to(tmp_path)
    with pytest.raises(EngineError, match="is a link or belongs to another user") as refused:
        server_sockets.make(folder, os.getuid(), os.getgid())
    in_tmp = folder.parent.parent == Path("/tmp")
    assert ("XDG_STATE_HOME" in str(refused.value)) == in_tmp, "of another user it cannot be removed there"
    folder.parent.unlink()


def test_a_server_on_ports_has_no_folder() -> None:
    assert server_sockets.folder_of(build.server(SPEC)) is None
