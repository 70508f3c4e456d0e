"""The reports of the kit: of this host's GPU where it has one, else of what stands in for it."""

import os
import tempfile
from pathlib import Path

import fake_gpu_host
import pytest
from fake_gpu_host import ROOT, kit

from gpu_kit.report import Report
from launchers.gpu import gpus

RESULTS = Path(os.environ.get("OUT") or ROOT / "docs" / "results" / "gpu")
HAS_GPU = bool(gpus.inventory())
collect_ignore = [] if HAS_GPU else ["test_claims.py"]


@pytest.fixture(scope="session")
def report() -> Report:
    """The report of this host's GPU, which stays in docs/results/gpu ($OUT where that is set)."""
    return kit(os.environ, RESULTS)


@pytest.fixture(scope="session")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report on fakes of libcuda, NVML and MPS; Triton and HAProxy are real."""
    with tempfile.TemporaryDirectory(prefix="gpu") as name:
        Path(name).chmod(0o755)
        fakes = fake_gpu_host.environment(Path(name))
        said = ["--short", "--rehearsal", "fakes of libcuda, NVML and MPS"]
        return kit(fakes, tmp_path_factory.mktemp("rehearsal"), *said)
