from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from controlplane.kernels import Kernel
from controlplane.latency import queueing
from controlplane.latency.queueing import kernel as queueing_kernel

pytestmark = pytest.mark.slow

KERNELS = [found for found in vars(queueing_kernel).values() if isinstance(found, Kernel)]

MODULE = """
from controlplane import kernels

@kernels.kernel
def half(x):
    return 0.5 * x

@kernels.kernel
def quarter(x):
    return half(half(x))
"""
SETUP = """
import sys
from controlplane import kernels

kernels.COMPILE_S, kernels.FREE_S = map(float, sys.argv[1:])
compiled = []
kernels.on_compilation(lambda name: compiled.append(name) if name.startswith("halves.") else None)
import halves
"""
TWO_CALLS = """
hits = halves.quarter.compiled.stats.cache_hits
print(halves.quarter(1.0), halves.quarter(1.0), sorted(compiled), *hits.values())
"""


def run_script(folder: Path, last_line: str, compile_s: float, free_s: float = 0.0) -> str:
    return subprocess.run(
        [sys.executable, "-c", SETUP + last_line, str(compile_s), str(free_s)],
        cwd=folder,
        env={"NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": f"{folder}:{Path.cwd()}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def test_a_kernel_is_interpreted_until_that_took_long_and_from_the_cache_afterwards(tmp_path: Path) -> None:
    (tmp_path / "halves.py").write_text(MODULE)
    assert run_script(tmp_path, TWO_CALLS, 60.0) == "0.25 0.25 []"
    assert run_script(tmp_path, TWO_CALLS, 0.0) == "0.25 0.25 ['halves.half', 'halves.quarter']"
    assert run_script(tmp_path, TWO_CALLS, 60.0) == "0.25 0.25 [] 1"


def test_numba_is_not_imported_for_a_few_calls(tmp_path: Path) -> None:
    (tmp_path / "halves.py").write_text(MODULE)
    call = "print(halves.quarter(1.0), 'numba' in sys.modules)"
    assert run_script(tmp_path, call, 60.0, 60.0) == "0.25 False"


def test_commands_that_each_interpret_a_little_compile_in_the_end(tmp_path: Path) -> None:
    slow = "0.5 * sum([x for _ in range(200_000)]) / 2e5"
    (tmp_path / "halves.py").write_text(MODULE.replace("0.5 * x", slow))
    outputs = [run_script(tmp_path, "print(halves.half(1.0), compiled)", 1e-5) for _ in range(2)]
    assert outputs == ["0.5 []", "0.5 ['halves.half']"]


def answers(run: str, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    for found in KERNELS:
        monkeypatch.setattr(found, "_run", getattr(found, run))
    rng = np.random.default_rng(1)
    batch = np.array([1, 2, 7, 16, 32, 8, 4, 3])
    servers = np.array([1, 1, 1, 1, 1, 2, 3, 1])
    service = 1.0 + np.cumsum(rng.uniform(0.1, 0.6, (batch.size, 32)), axis=1)
    load = np.array([0.5, 0.9, 0.7, 0.95, 0.3, 0.8, 0.9, 0.6])
    rate = load * servers * batch / service[np.arange(batch.size), batch - 1]
    dispersion = np.where(np.arange(batch.size) == batch.size - 1, 0.0, 1.0)
    found = queueing.solve(1000.0 * rate, service, batch, servers, dispersion)
    return np.stack([found.mean_ms, found.p50_ms, found.p99_ms])


def test_interpreted_and_compiled_queues_agree_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreted = answers("interpreted", monkeypatch)
    compiled = answers("compiled", monkeypatch)
    assert np.isfinite(interpreted).all()
    assert np.array_equal(interpreted, compiled)
