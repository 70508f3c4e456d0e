"""Does MPS hold what a plan promises? For a host with an NVIDIA GPU; nothing here was run without one.

    python -m pytest -W default -m gpu tests/gpu

Needs nvidia-cuda-mps-control and a Triton (`$TRISECT_TRITON_HOME`): the vendor's with its onnxruntime
backend, or any with the Python backend, a stub for this Python, and PyTorch in it. Of Python packages: numpy,
scipy, psutil, nvidia-ml-py, pytest, pytest-timeout. No Docker, no network. What was measured goes to
docs/results/gpu-<GPU>.json ($OUT/gpu-<GPU>.json where OUT is set), with the driver and the date, after every
test: a run that is cut short leaves what it has.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_rig import Seen, drive, write_repository
from numpy.typing import NDArray

from controlplane.domain.errors import MissingTool
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec
from controlplane.domain.profile import Measurement
from controlplane.latency.models import igniter
from launchers.gpu import gpus, mps
from launchers.host import process_table
from launchers.process.launcher import ProcessLauncher
from launchers.triton import program

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1800)]

RESULTS = Path(os.environ.get("OUT") or Path(__file__).parents[2] / "docs" / "results")
SMALL, LARGE = (2, 2, 2, 2), (3, 4, 6, 3)
PERCENTS, BATCHES = (20.0, 30.0, 45.0, 60.0, 100.0), (1, 4, 8, 16)
SECONDS = 3.0
"""For each of 40 points, on ten starts."""


def backend() -> str | None:
    """What runs the models here."""
    backends = program.find_home().backends
    if (backends / "onnxruntime").is_dir():
        return "onnxruntime"
    return "python" if (backends / "python").is_dir() and importlib.util.find_spec("torch") else None


def obstacle() -> str | None:
    if not gpus.inventory():
        return "no NVIDIA GPU"
    if not mps.capability().available:
        return mps.capability().detail
    try:
        found = backend()
    except MissingTool as error:
        return str(error)
    return None if found else "Triton has no onnxruntime backend, and this Python has no PyTorch"


@pytest.fixture(scope="module")
def gpu() -> gpus.Gpu:
    why_not = obstacle()
    if why_not is not None:
        pytest.skip(f"GPU TESTS NOT RUN: {why_not}")
    whole = [g for g in gpus.inventory() if not g.mig]
    if not whole:
        pytest.skip("GPU TESTS NOT RUN: every GPU is cut into MIG instances")
    return whole[0]


class Rig:
    """Servers on one GPU, and what was measured with them."""

    def __init__(self, gpu: gpus.Gpu, folder: Path) -> None:
        self.gpu = gpu
        self.launcher = ProcessLauncher(folder / "state")
        self.backend = backend() or ""
        self.repositories = {
            name: write_repository(folder / name, name, stages, backend=self.backend)
            for name, stages in (("small", SMALL), ("large", LARGE))
        }
        self.results: dict[str, Any] = {}

    def start(self, model: str, percent: float) -> Server:
        labels = Labels("gputest", "plan", model, Role.PROFILE, f"p{percent:g}")
        spec = ServerSpec(labels, str(self.repositories[model]), (model,), self.gpu.uuid, percent)
        return self.launcher.start(spec, deadline_s=180)

    def stop(self, *servers: Server) -> None:
        for server in servers:
            self.launcher.stop(server, drain_s=5)

    def write(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        try:
            driver = pynvml.nvmlSystemGetDriverVersion()
        finally:
            pynvml.nvmlShutdown()
        said = {
            "gpu": self.gpu.name,
            "driver": driver.decode() if isinstance(driver, bytes) else driver,
            "backend": self.backend,
            "date": datetime.date.today().isoformat(),
            **self.results,
        }
        RESULTS.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^a-z0-9]+", "-", self.gpu.name.lower())
        (RESULTS / f"gpu-{name}.json").write_text(json.dumps(said, indent=1) + "\n")


@pytest.fixture(autouse=True)
def _kept(rig: Rig) -> Iterator[None]:
    """What is known after each test is on disk, should the machine go away."""
    yield
    rig.write()


@pytest.fixture(scope="module")
def rig(gpu: gpus.Gpu, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(gpu, tmp_path_factory.mktemp("gpu"))
    try:
        yield made
    finally:
        made.stop(*made.launcher.servers("gputest"))
        made.launcher.sweep("gputest")


def images(batch: int) -> NDArray[np.float32]:
    return np.random.default_rng(batch).random((batch, 3, 224, 224), dtype=np.float32)


def sweep(rig: Rig, model: str) -> dict[tuple[float, int], Seen]:
    seen = {}
    for percent in PERCENTS:
        server = rig.start(model, percent)
        try:
            for batch in BATCHES:
                seen[percent, batch] = drive(server, model, images(batch), SECONDS)
        finally:
            rig.stop(server)
    return seen


@pytest.fixture(scope="module")
def alone(rig: Rig) -> dict[str, dict[tuple[float, int], Seen]]:
    found = {model: sweep(rig, model) for model in ("small", "large")}
    rig.results["alone"] = [
        {"model": model, "percent": percent, "batch": batch, **asdict(seen)}
        for model, points in found.items()
        for (percent, batch), seen in points.items()
    ]
    return found


def test_two_tritons_are_clients_of_one_daemon(rig: Rig) -> None:
    servers = rig.start("small", 30), rig.start("large", 60)
    try:
        assert all(s.enforced_by == mps.MECHANISM for s in servers)
        clients = set(mps.clients(mps.MpsDaemons().pipes(rig.gpu.uuid)))
        for server in servers:
            # With the Python backend the model's own process computes.
            mine = {m.pid for m in process_table.members(name=server.name)}
            assert mine & clients, f"{server.name}: none of {mine} is among the daemon's {clients}"
            assert rig.launcher.usage(server).memory_mb, "NVML tells how much of the GPU it occupies"
    finally:
        rig.stop(*servers)


@pytest.mark.parametrize("model", ["small", "large"])
def test_the_percentage_bites(alone: dict[str, dict[tuple[float, int], Seen]], model: str) -> None:
    times = [alone[model][percent, 16].execution_ms for percent in PERCENTS]
    assert times[0] > 1.3 * times[-1], times
    assert all(later < 1.1 * earlier for earlier, later in pairwise(times)), times


@pytest.mark.parametrize("model", ["small", "large"])
def test_equation_11_fits(rig: Rig, alone: dict[str, dict[tuple[float, int], Seen]], model: str) -> None:
    points = [
        Measurement(percent, batch, seen.execution_ms) for (percent, batch), seen in alone[model].items()
    ]
    curve = igniter.fit_curve(points, model)
    rig.results.setdefault("equation_11", {})[model] = {
        **curve.coefficients,
        "holdout_error": curve.holdout_error,
    }
    assert curve.holdout_error < 0.15


def test_neighbours_cost_something_and_the_slo_of_half_the_time_holds(
    rig: Rig, alone: dict[str, dict[tuple[float, int], Seen]]
) -> None:
    small, large = rig.start("small", 30), rig.start("large", 60)
    try:
        with ThreadPoolExecutor(2) as pool:
            both = [
                pool.submit(drive, small, "small", images(8), 2 * SECONDS),
                pool.submit(drive, large, "large", images(8), 2 * SECONDS),
            ]
            together = {"small": both[0].result(), "large": both[1].result()}
    finally:
        rig.stop(small, large)
    rig.results["together"] = {}
    for model, percent in (("small", 30.0), ("large", 60.0)):
        before, after = alone[model][percent, 8], together[model]
        rig.results["together"][model] = {
            "percent": percent,
            "batch": 8,
            "slowdown": after.execution_ms / before.execution_ms,
            "p99_over_alone": after.p99_ms / before.mean_ms,
            **asdict(after),
        }
        assert after.execution_ms > 0.95 * before.execution_ms
        # iGniter plans for half the SLO: a P99 beyond twice the predicted mean would break what it plans.
        assert after.p99_ms < 2 * after.mean_ms
