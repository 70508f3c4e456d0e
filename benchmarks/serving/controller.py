"""What the controller costs: 20 workloads with hot shadows on real Tritons, 1,000 requests a second in all.

    python -m benchmarks.serving.controller [--workloads 20] [--rate 1000] [--seconds 10]

CPU time as a part of one core, idle and under load, of each process of the control plane. The aim: the
controller below 2 %, with the telemetry (the monitor, which reads the gateway's log for it) below 10 %.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import ctl_fleet
import guard_rig as rig
import numpy as np
import psutil
from guard_rig import Guarded
from open_load import open_loop
from sleeping_triton import request

from benchmarks.harness import Figures
from controlplane.profiler.load import poisson_times

SLO_MS = 5000.0
CORES = 2
LIMIT_CONTROLLER = 2.0
LIMIT_TOTAL = 10.0
ANSWERED = 0.9


def plan(workloads: int, rate_rps: float) -> dict[str, object]:
    """As many on each core as there are cores to share; each with a shadow that is no larger."""
    devices = [f"cpu-{core}" for core in sorted(os.sched_getaffinity(0))[:CORES]]
    percent = 100.0 * len(devices) / workloads
    gpus = []
    for i, device in enumerate(devices):
        names = [f"w{n}" for n in range(workloads) if n % len(devices) == i]
        parts = [
            rig.partition(n, percent, rate_rps=rate_rps / workloads, slo_ms=SLO_MS, extra=0.0, device=device)
            for n in names
        ]
        gpus.append({"id": device, "type": "cpu", "partitions": parts})
    return {**ctl_fleet.plan(), "gpus": gpus}


def processes(fleet: Guarded) -> dict[str, psutil.Process]:
    found = {"controller": psutil.Process(fleet.controller().pid)}
    for role in ("monitor", "facade", "supervisor", "haproxy"):
        for process in fleet.gateway_processes(role):
            found[role] = process
    return found


def measure(watched: dict[str, psutil.Process], seconds: float) -> dict[str, float]:
    before = {name: sum(p.cpu_times()[:2]) for name, p in watched.items()}
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return {name: 100.0 * (sum(p.cpu_times()[:2]) - before[name]) / took for name, p in watched.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", type=int, default=20)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trisect-cost-") as name, Guarded(Path(name)) as fleet:
        fleet.apply(plan(options.workloads, options.rate), "--allow", "all-cores")
        fleet.await_guarded(options.workloads)
        watched = processes(fleet)
        time.sleep(5.0)
        idle = measure(watched, options.seconds)
        random = np.random.default_rng(1)
        target = f"127.0.0.1:{fleet.grpc}"
        ended: list[int] = []

        def load(endpoint: str, due: list[float]) -> None:
            ended.append(
                open_loop(target, request(endpoint, value=0.0), due, deadline_s=30.0).latency_ms.size
            )

        each = options.rate / options.workloads
        threads = [
            threading.Thread(target=load, args=(f"w{i}", poisson_times(each, options.seconds + 4.0, random)))
            for i in range(options.workloads)
        ]
        for thread in threads:
            thread.start()
        time.sleep(2.0)
        loaded = measure(watched, options.seconds)
        for thread in threads:
            thread.join()
    figures, aims = Figures(), {"controller": LIMIT_CONTROLLER}
    for name in watched:
        figures.add(f"{name}, idle", idle[name], "% of a core")
        figures.add(f"{name}, loaded", loaded[name], "% of a core", at_most=aims.get(name))
    total = loaded["controller"] + loaded["monitor"]
    figures.add("controller and telemetry", total, "% of a core", at_most=LIMIT_TOTAL)
    answered_rps = sum(ended) / (options.seconds + 4.0)
    figures.add("answered", answered_rps, "/s", at_least=ANSWERED * options.rate)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
