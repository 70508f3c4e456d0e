"""An ensemble of two steps and a model that calls two others: predicted, simulated and measured P99.

    .venv/bin/python tests/bench/composed.py [--seconds 40]

Both are profiled as a whole with what they execute in their server, planned on one core, applied, and loaded
with Poisson arrivals at the planned rates, both at once. Then each moves to its shadow under the same load.
Exit code 1 where a simulated P99 is more than 10 % off the measured one, an SLO does not hold or a request is
lost.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import numpy as np
from composed_models import write_models
from ctl_host import Host, ended
from rich.console import Console
from rich.table import Table

from controlplane.profiler.load import off_core, poisson_times
from controlplane.runtime.demo import clients

AIM = 0.10
REDIRECT_S = 8.0
RATES = {"pipeline": 16.0, "calls": 16.0}
SLO_MS = 300
X = clients.Tensor("X", "FP32", np.zeros((1, 1), np.float32))


def done(host: Host, *arguments: str) -> str:
    """stdout of a verb. Raises RuntimeError where it fails."""
    told = host.bare(*arguments)
    if told.returncode:
        raise RuntimeError(f"ctl {' '.join(arguments)}: {told.stderr}")
    return told.stdout


def planned(host: Host) -> dict[str, dict[str, float]]:
    """Profile, plan and simulate both; what was found by workload."""
    place = ["--repository", str(host.repository), "--device", "cpu-0", "--launcher", "process"]
    few = ["--percents", "30,100", "--batches", "1,2,4", "--budget", "25"]
    for name in RATES:
        print(done(host, "profile", name, *place, *few), end="", flush=True)
    workloads = [{"name": n, "model": n, "slo_ms": SLO_MS, "rate_rps": rate} for n, rate in RATES.items()]
    spec = {"schema_version": 1, "gpus": [{"type": "cpu", "count": 1}], "workloads": workloads}
    (host.directory / "spec.json").write_text(json.dumps(spec))
    done(host, "plan", "spec.json", "--output", "plan.json")
    plan = json.loads((host.directory / "plan.json").read_text())
    told = json.loads(done(host, "simulate", "plan.json", "--seconds", "1200", "--json"))
    simulated = {w["name"]: w["p99_ms"] for w in told["workloads"]}
    return {
        w["name"]: {
            "percent": p["percent"],
            "batch": p["models"][0]["batch"],
            "predicted": w["predicted"]["p99_ms"],
            "simulated": simulated[w["name"]],
        }
        for gpu in plan["gpus"]
        for p in gpu["partitions"]
        for w in p["workloads"]
    }


def loaded(
    host: Host, pool: ThreadPoolExecutor, seconds: float, seed: int
) -> dict[str, Future[clients.Seen]]:
    """Poisson arrivals on every endpoint for so long."""
    random = np.random.default_rng(seed)
    target = f"127.0.0.1:{host.grpc}"
    return {
        name: pool.submit(clients.over_grpc, target, name, [X], poisson_times(rate, seconds, random))
        for name, rate in RATES.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=40.0, help="of load")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, ended(Host(Path(scratch), f"steps{os.getpid()}")) as host:
        write_models(host.repository)
        found = planned(host)
        ports = ["--http-port", str(host.http), "--grpc-port", str(host.grpc)]
        ports += ["--metrics-port", str(host.metrics), "--repository", str(host.repository)]
        applied = host.ctl("apply", "plan.json", "--yes", "--launcher", "process", *ports)
        if applied.returncode:
            raise RuntimeError(applied.stderr)
        with off_core(0), ThreadPoolExecutor(2) as pool:
            seen = {n: f.result() for n, f in loaded(host, pool, asked.seconds, 7).items()}
            moving = loaded(host, pool, REDIRECT_S, 8)
            moved = [host.ctl("redirect", name).returncode for name in RATES]
            beside = {n: f.result() for n, f in moving.items()}
    table = Table(title="P99 of models that execute others, ms", title_justify="left")
    for column in ("workload", "share %", "batch", "rate/s", "answered", "SLO", "predicted", "simulated"):
        table.add_column(column, justify="right")
    for column in ("measured", "sim/meas", "lost", "lost while moved"):
        table.add_column(column, justify="right")
    good = not any(moved)
    for name, one in found.items():
        measured = float(np.percentile(seen[name].latency_ms, 99))
        lost = len(seen[name].failures), len(beside[name].failures)
        ratio = one["simulated"] / measured
        good &= abs(ratio - 1.0) <= AIM and measured <= SLO_MS and not any(lost)
        table.add_row(
            name,
            f"{one['percent']:g}",
            f"{one['batch']:g}",
            f"{RATES[name]:g}",
            str(seen[name].latency_ms.size),
            str(SLO_MS),
            f"{one['predicted']:.1f}",
            f"{one['simulated']:.1f}",
            f"{measured:.1f}",
            f"{ratio:.2f}",
            str(lost[0]),
            f"{lost[1]} of {lost[1] + beside[name].latency_ms.size}",
        )
    Console(width=150).print(table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
