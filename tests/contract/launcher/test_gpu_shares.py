"""A share of a GPU is believed only where it is seen, under every launcher.

The Tritons are real and on this host's cores; GPU, NVML, MPS and libcuda are FAKES that behave as NVIDIA's
documents say: nothing here ran on a GPU. Docker's engine is real and gets no device.
"""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import build
import pytest
from background import until
from fake_mps import PROGRAMS, fake_daemons
from fake_nvml import FakeGpu, FakeNvml
from launcher_rig import MODEL, Engine, Fleet, engines, infer

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Server, ServerSpec
from launchers.docker import containers
from launchers.gpu import control, mps
from launchers.kubernetes import pod

UUID = "GPU-11111111-2222-3333-4444-555555555555"
pytestmark = pytest.mark.parametrize("engine", engines("process", "docker", "kubernetes"), indirect=True)


@dataclass(frozen=True)
class Gpu:
    """A GPU that is not there, with its MPS daemon."""

    folder: Path
    pipes: Path

    def spec(self, fleet: Fleet, before: str = "pass") -> ServerSpec:
        """A server whose model does `before`, and then uses CUDA."""
        code = f"    def initialize(self, args):\n        {before}\n        use_gpu({str(self.folder)!r})\n"
        source = MODEL.replace("    def initialize(self, args):\n        pass\n", code)
        libcuda = (PROGRAMS / "fake_cuda.py").read_text()
        return fleet.spec(device=UUID, percent=30, source=f"{libcuda}\n{source}")

    def steer(self, name: str, text: str = "") -> None:
        """Change what the fake daemon does."""
        (self.pipes / name).write_text(text)


@pytest.fixture
def gpu(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    with tempfile.TemporaryDirectory(prefix="gpu") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "plain").mkdir()
        monkeypatch.setenv("FAKE_GPU", name)
        root = folder / f"trisect-mps-{os.getuid()}"
        monkeypatch.setattr(tempfile, "tempdir", name)
        monkeypatch.setattr(pod, "DAEMON_FOLDER", str(root))
        on_gpu = containers._on_gpu
        monkeypatch.setattr(containers, "_on_gpu", lambda *given: on_gpu(*given) | {"device_requests": []})
        with fake_daemons(root, FakeNvml(FakeGpu(UUID, folder=folder)), monkeypatch) as daemons:
            daemons.client(build.spec(device=UUID), start=True)
            (root / UUID / "shm").mkdir()
            yield Gpu(folder, root / UUID / "pipe")


def listed(fleet: Fleet) -> Server:
    (found,) = fleet.launcher.servers(fleet.name)
    return found


def test_a_client_of_its_daemon_holds_its_share(gpu: Gpu, fleet: Fleet) -> None:
    gpu.steer("lag", "2")
    server = fleet.start(gpu.spec(fleet))
    assert infer(server) == [0.0, 0.0]
    assert server.enforced_by == mps.MECHANISM
    assert listed(fleet) == server
    assert fleet.start(server.spec) == server


def test_a_server_that_misses_its_daemon_is_never_ready(gpu: Gpu, fleet: Fleet) -> None:
    elsewhere = f"os.environ[{control.PIPES!r}] = '/nowhere'"
    with pytest.raises(EngineError, match="MPS"):
        fleet.start(gpu.spec(fleet, before=elsewhere), deadline_s=8)
    assert fleet.launcher.servers(fleet.name) == ()
    assert fleet.leftovers() == []


def test_a_daemon_that_quits_under_its_clients_is_seen_at_the_next_look(gpu: Gpu, fleet: Fleet) -> None:
    server = fleet.start(gpu.spec(fleet))
    control.ask(gpu.pipes, "quit")
    seen = until(lambda: next((s for s in fleet.launcher.servers(fleet.name) if s.end), None), 30.0)
    assert seen.name == server.name
    assert seen.enforced_by is None
    assert "without its share" in str(seen.end)


def test_an_mps_server_that_ends_at_once_is_named(gpu: Gpu, fleet: Fleet) -> None:
    gpu.steer("exits")
    with pytest.raises(EngineError, match=r"mps-server exited|\(805\)"):
        fleet.start(gpu.spec(fleet), deadline_s=20)
    assert fleet.leftovers() == []
