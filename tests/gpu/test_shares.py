"""Does MPS hold what a plan promises? For a host with an NVIDIA GPU; nothing here was run without one.

    python -m pytest -W default -m gpu tests/gpu

Needs nvidia-cuda-mps-control and a Triton (`$TRISECT_TRITON_HOME`): the vendor's with its onnxruntime
backend, or any with the Python backend, a stub for this Python, and PyTorch in it. Of Python packages: numpy,
scipy, psutil, nvidia-ml-py, pytest, pytest-timeout. No Docker, no network. What was measured goes to
docs/results/gpu-<GPU>.json ($OUT/gpu-<GPU>.json where OUT is set), with the driver and the date, after every
test: a run that is cut short leaves what it has.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pytest
from gpu_rig import Seen, drive
from gpu_servers import Rig
from numpy.typing import NDArray

from controlplane.domain.profile import Measurement
from controlplane.papers.igniter import latency as igniter
from launchers.gpu import mps, proof
from launchers.host import process_table

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1800)]

PERCENTS, BATCHES = (20.0, 30.0, 45.0, 60.0, 100.0), (1, 4, 8, 16)
SECONDS = 3.0
"""For each of 40 points, on ten starts."""


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
        seen = proof.clients_of(rig.gpu.uuid, mps.MpsDaemons().pipes(rig.gpu.uuid))
        for server in servers:
            # With the Python backend the model's own process computes.
            mine = {m.pid for m in process_table.members(name=server.name)}
            assert proof.lack(server.spec.percent, mine, seen) is None
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
