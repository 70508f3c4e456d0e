"""Servers that a command starts for itself."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.profiler.temporary import check_python_path, exclusive, running

SPEC = ServerSpec(Labels("f", "p", "w", Role.PROFILE, "r"), "/models", ("w",), "cpu-0", 50.0)


class Interrupted:
    """A launcher whose first stop is interrupted before it has ended anything."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self._stops = 0

    def start(self, spec: ServerSpec, *, deadline_s: float) -> Server:
        self.running.add(spec.name)
        return Server("1", spec, ServerState.RUNNING, "127.0.0.1", 1, 2, 3)

    def stop(self, server: Server, *, drain_s: float) -> None:
        self._stops += 1
        if self._stops == 1:
            raise KeyboardInterrupt
        self.running.discard(server.name)


@pytest.mark.parametrize("folder", ["my models", "modèles", "a$b", "it's", "a&b"])
def test_a_path_that_the_python_backend_cannot_start_from_is_named(tmp_path: Path, folder: str) -> None:
    process, docker = (cast(Any, SimpleNamespace(name=name)) for name in ("process", "docker"))
    with pytest.raises(InputError) as caught:
        check_python_path(process, tmp_path / folder)
    assert caught.value.file == str(tmp_path / folder)
    check_python_path(process, Path("/plain/a-b_c.d@e"))
    check_python_path(docker, tmp_path / folder)


def test_an_interruption_of_the_stop_leaves_no_server() -> None:
    launcher = Interrupted()
    with pytest.raises(KeyboardInterrupt), running(cast(Any, launcher), SPEC, deadline_s=1.0):
        pass
    assert launcher.running == set()


class Left:
    """A launcher whose start is interrupted when its server runs."""

    def __init__(self) -> None:
        self.left: list[str] = []

    def start(self, spec: ServerSpec, *, deadline_s: float) -> Server:
        self.left += ["server", "memory"]
        raise KeyboardInterrupt

    def servers(self, fleet: str) -> tuple[Server, ...]:
        server = Server("1", SPEC, ServerState.RUNNING, "127.0.0.1", 1, 2, 3)
        return (server,) if "server" in self.left else ()

    def stop(self, server: Server, *, drain_s: float) -> None:
        self.left.remove("server")

    def sweep(self, fleet: str) -> tuple[str, ...]:
        self.left.clear()
        return ()


def test_what_an_interrupted_start_left_is_removed_at_the_end(tmp_path: Path) -> None:
    launcher = Left()
    with (
        pytest.raises(KeyboardInterrupt),
        exclusive(cast(Any, launcher), "f", tmp_path / "lock", "busy"),
        running(cast(Any, launcher), SPEC, deadline_s=1.0),
    ):
        pass
    assert launcher.left == []
