"""Plans of many partitions, and what a controller of them costs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "tests" / "data" / "models"


def plan(partitions: int, changed: int = 0) -> dict[str, Any]:
    """One partition on each core, with a hot shadow beside it; the first `changed` have a smaller share."""
    gpus = []
    for i in range(partitions):
        core, name = f"cpu-{i}", f"w{i:04}"
        shadow = {"policy": "hot", "gpu": core, "percent": 60}
        workload = {"name": name, "endpoint": name, "model": "echo", "rate_rps": 10, "slo_ms": 1000}
        percent = 45 if i < changed else 50
        terms = {"models": [{"model": "echo", "batch": 1}], "workloads": [workload]}
        part = {"id": name, "percent": percent, "shadow": {**shadow, "extra_percent": 60 - percent}, **terms}
        gpus.append({"id": core, "type": "cpu", "partitions": [part]})
    made = {"schema_version": 1, "strategy": "igniter", "rule": "half-slo", "latency_model": "igniter"}
    return {**made, "gpus": gpus}


class AloneController:
    """A process of `controller_alone`."""

    def __init__(self, state: Path, process: subprocess.Popen[str]) -> None:
        self._state = state
        self._process = process

    def apply(self, partitions: int, changed: int = 0) -> float:
        """Apply a plan of so many partitions, of which some change; return the seconds that took."""
        file = self._state / f"{partitions}-{changed}.json"
        file.write_text(json.dumps(plan(partitions, changed)))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file, file=self._process.stdin, flush=True)
        return float(json.loads(self._process.stdout.readline())["apply_s"])

    def cost(self, seconds: float) -> tuple[float, float]:
        """Return the percent of a core that it takes for some seconds, and its memory in MB."""
        process = psutil.Process(self._process.pid)

        def spent_s() -> float:
            times = process.cpu_times()
            return float(times.user + times.system)

        spent, began = spent_s(), time.monotonic()
        time.sleep(seconds)
        used = 100 * (spent_s() - spent) / (time.monotonic() - began)
        return used, process.memory_info().rss / 1e6


@contextlib.contextmanager
def controller(state: Path, rate_rps: float, environment: Mapping[str, str]) -> Iterator[AloneController]:
    """A controller with its state in a folder that has the `models`; its log is there."""
    child = "from benchmarks.kubernetes import controller_alone; controller_alone.main()"
    command = [sys.executable, "-c", child, str(state), str(rate_rps)]
    with (state / "controller.log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment},
        )
        try:
            yield AloneController(state, process)
        finally:
            process.kill()
            process.wait()
