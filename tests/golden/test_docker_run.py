"""The exact `docker run` of a partition, for a GPU host and for a host without one."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from launchers.docker import containers
from launchers.docker.containers import ContainerOptions, Network
from launchers.gpu.control import PIPES
from launchers.gpu.mps import MpsClient, share_variables
from launchers.host_lifecycle import HostPlace
from launchers.triton import program
from launchers.triton.batches import BatchFiles

UUID = "GPU-11111111-2222-3333-4444-555555555555"
HOST = "unix:/home/ann/.local/state/trisect/default/servers/0123456789ab-0a1b2c3d/t"
FOLDER = f"/tmp/trisect-mps-1000/{UUID}/pipe"


def server(device: str, memory_mb: float | None) -> Server:
    labels = Labels("default", "a1b2c3", "W1", Role.ACTIVE, "d4e5f6")
    spec = ServerSpec(labels, "/srv/rendered/W1", ("W1",), device, 37.5, memory_mb, memory_mb)
    held = "mps" if device == UUID else "docker-cpu-quota"
    return Server("", spec, ServerState.RUNNING, HOST, *program.PORTS, held)


def line(kind: str) -> str:
    match kind:
        case "gpu":
            one = server(UUID, 4096.0)
            client = MpsClient(UUID, FOLDER, 1001, {PIPES: FOLDER, **share_variables(one.spec)})
            made = containers.arguments(one, ContainerOptions(), HostPlace(gpu=client))
        case "cpu":
            # As on an engine whose cgroups no systemd rules.
            place = HostPlace(core=3, batches=BatchFiles(Path("/state/default/batches/d1")))
            one = server("cpu-3", 512.0)
            one = replace(one, spec=replace(one.spec, batches=(("W1", 4),)))
            made = containers.arguments(one, ContainerOptions(), place, "/")
        case _:
            options = ContainerOptions("registry.example/triton@sha256:abc", network=Network.BRIDGE)
            made = containers.arguments(server("cpu-3", None), options, HostPlace(core=3))
    return containers.run_line(made) + "\n"


@pytest.mark.parametrize("kind", ["gpu", "cpu", "bridge"])
def test_docker_run(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1001)
    monkeypatch.setattr(os, "getgid", lambda: 1001)
    golden = Path(__file__).parent / "docker_run" / f"{kind}.sh"
    assert line(kind) == golden.read_text()


def test_clients_that_may_share_memory_reach_a_container() -> None:
    alone = server("cpu-3", None)
    shared = replace(alone, spec=replace(alone.spec, fleet_wide_calls=True))
    made = [containers.arguments(one, ContainerOptions(), HostPlace(core=3)) for one in (alone, shared)]
    assert [one["ipc_mode"] for one in made] == ["private", "host"]


def rendered_link(tmp_path: Path) -> tuple[Path, Path]:
    """A rendered repository with one link to a model's label file, which does not exist yet."""
    source, rendered = tmp_path / "source" / "m", tmp_path / "rendered"
    source.mkdir(parents=True)
    (rendered / "m").mkdir(parents=True)
    (rendered / "m" / "labels.txt").symlink_to(source / "labels.txt")
    return source / "labels.txt", rendered


def test_a_link_out_of_the_model_repository_is_not_mounted(tmp_path: Path) -> None:
    labels, rendered = rendered_link(tmp_path)
    secrets = tmp_path / "home" / ".ssh"
    secrets.mkdir(parents=True)
    labels.symlink_to(secrets)
    with pytest.raises(InputError, match=r"labels.txt: leads to .*\.ssh, outside .*TRISECT_LINK_ROOTS"):
        containers.folders(rendered)
    # The name of a root is no prefix of text.
    with pytest.raises(InputError):
        containers.folders(rendered, [tmp_path / "home" / ".s"])
    assert str(secrets) in containers.folders(rendered, [tmp_path / "home"])


def test_models_and_links_within_their_repository_are_mounted_where_they_lead(tmp_path: Path) -> None:
    labels, rendered = rendered_link(tmp_path)
    shared, version = tmp_path / "source" / "shared.txt", tmp_path / "source" / "m" / "1"
    shared.write_text("cat")
    labels.symlink_to("../shared.txt")
    version.mkdir()
    (rendered / "m" / "1").symlink_to(version)
    assert containers.folders(rendered) == tuple(sorted(map(str, (rendered, shared, version))))


def test_link_roots_come_from_the_environment_and_must_be_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(containers.LINK_ROOTS, f"{tmp_path}:/")
    assert ContainerOptions.from_environment().link_roots == (tmp_path, Path("/"))
    monkeypatch.setenv(containers.LINK_ROOTS, "relative")
    with pytest.raises(InputError, match="TRISECT_LINK_ROOTS"):
        ContainerOptions.from_environment()
