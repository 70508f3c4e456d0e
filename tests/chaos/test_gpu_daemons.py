"""Two fleets start and stop servers on one GPU at once: no daemon ends under a server that starts.

GPU, NVML, MPS and libcuda are FAKES that behave as NVIDIA's documents say: nothing here ran on a GPU.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import build
import pytest
from fake_mps import PROGRAMS, fake_daemons
from fake_nvml import FakeGpu, FakeNvml

from launchers.gpu.mps import MpsDaemons

pytestmark = pytest.mark.timeout(600)

UUID = "GPU-11111111-2222-3333-4444-555555555555"


def start_and_stop(root: Path, rounds: int) -> Counter[str]:
    """Return how often a server became a client, what else happened to it, and how often a daemon ended."""
    daemons, seen = MpsDaemons(root), Counter[str]()
    for _ in range(rounds):
        with daemons.starting(UUID):
            client = daemons.client(build.spec(device=UUID), start=True)
            server = subprocess.Popen(
                [sys.executable, "-IS", str(PROGRAMS / "fake_cuda.py"), str(root.parent)],
                env={**os.environ, **client.environment},
                stdout=subprocess.PIPE,
                text=True,
            )
            assert server.stdout is not None
            seen[server.stdout.readline().strip()] += 1
        server.kill()
        server.communicate()
        seen["swept"] += len(daemons.sweep())
    return seen


@pytest.mark.parametrize("rounds", [15, pytest.param(100, marks=pytest.mark.soak)])
def test_no_daemon_ends_under_a_starting_server(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="gpu") as name:
        folder = Path(name)
        (folder / "plain").mkdir()
        nvml = FakeNvml(FakeGpu(UUID, folder=folder))
        with (
            fake_daemons(folder / "mps", nvml, monkeypatch),
            multiprocessing.get_context("fork").Pool(2) as fleets,
        ):
            one, two = fleets.starmap(start_and_stop, [(folder / "mps", rounds)] * 2)
    seen = one + two
    assert seen.pop("swept") > 0, "no daemon ended at all"
    assert seen == {"client of MPS": 2 * rounds}
