"""A controller of up to 1,000 partitions against a real API server, with pods that only claim to run.

    KUBEBUILDER_ASSETS=FOLDER .venv/bin/python -m benchmarks.kubernetes.scale [--sizes 125,250,500,1000]
        [--seconds 30] [--rate 1]

Needs the programs that `make test-kubernetes` needs. etcd, API server and scheduler are real; nodes are
objects, a quarter as many as partitions, and pods are patched to Running. The gateway is left out. For each
size: the time of the apply, then the steady state's CPU time, memory and API requests, with RATE requests a
second that end at each partition; last the time of an apply that changes 50 partitions. The aims at the
largest size: at most 20 % of a core, and 60 s for the change.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from kube import cluster as clusters
from kube.cluster import Cluster
from kube.processes import MissingProgram

from benchmarks.harness import Figures, show, table
from benchmarks.kubernetes.claimed_pods import NODE_CORES, ClaimedPods, register_nodes
from benchmarks.kubernetes.controller_alone import NAMESPACE
from controlplane.runtime.controller.observer import CANARIES_RPS

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
        spent_s, began = sum(process.cpu_times()[:2]), time.monotonic()
        time.sleep(seconds)
        used = 100 * (sum(process.cpu_times()[:2]) - spent_s) / (time.monotonic() - began)
        return used, process.memory_info().rss / 1e6


@contextlib.contextmanager
def controller(state: Path, rate_rps: float, environment: Mapping[str, str]) -> Iterator[AloneController]:
    """A controller with its state in a folder that has the `models`; its log is there."""
    settings = "from controlplane.cli.main import spare_cores; spare_cores()"  # those of ctl's processes
    child = f"{settings}; from benchmarks.kubernetes import controller_alone; controller_alone.main()"
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


AIM_PERCENT = 20.0
AIM_CHANGE_S = 60.0
CHANGED = 50


@dataclass(frozen=True)
class Row:
    """One size. CPU in percent of one core; API requests of a minute in the steady state, by kind."""

    partitions: int
    pods: int
    nodes: int
    apply_s: float
    cpu_percent: float
    memory_mb: float
    requests: Mapping[str, float]
    change_s: float


def requests_so_far(cluster: Cluster) -> dict[str, float]:
    """Requests of the kinds that a controller makes, as the API server counted them."""
    found: dict[str, float] = {}
    pattern = re.compile(r'apiserver_request_total\{.*?resource="(\w+)".*?verb="(\w+)".*?\} (\S+)')
    for line in cluster.api.get("/metrics").text.splitlines():
        if (match := pattern.match(line)) and match[1] in KINDS:
            key = f"{match[2]} {match[1]}"
            found[key] = found.get(key, 0.0) + float(match[3])
    return found


KINDS = ("pods", "configmaps", "poddisruptionbudgets", "nodes")


def measure(cluster: Cluster, child: AloneController, seconds: float) -> dict[str, Any]:
    """CPU, memory and API requests of the controller for some seconds."""
    before, began = requests_so_far(cluster), time.monotonic()
    cpu_percent, memory_mb = child.cost(seconds)
    after, took = requests_so_far(cluster), time.monotonic() - began
    grown = {key: 60 * (after[key] - before.get(key, 0.0)) / took for key in after}
    requests = {key: rate for key, rate in grown.items() if rate > 0}
    return {"cpu_percent": cpu_percent, "memory_mb": memory_mb, "requests": requests}


def rows(sizes: list[int], seconds: float, rate_rps: float) -> Iterator[Row]:
    """Each size after the one before, on the same cluster."""
    with (
        clusters.running(names=()) as cluster,
        tempfile.TemporaryDirectory(prefix="trisect-scale-") as folder,
    ):
        state = Path(folder)
        shutil.copytree(MODELS, state / "models")
        cluster.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        # No controller makes the account without which no pod is admitted.
        where = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        cluster.create(where, {"metadata": {"name": "default"}})
        pods = ClaimedPods(cluster, NAMESPACE)
        registered = 0
        try:
            with controller(state, rate_rps, {"KUBECONFIG": str(cluster.kubeconfig)}) as child:
                for size in sizes:
                    wanted = -(-size // NODE_CORES)
                    register_nodes(cluster, registered, wanted)
                    registered = wanted
                    apply_s = child.apply(size)
                    time.sleep(LEAST_SETTLE_S + 2 * size / CANARIES_RPS)
                    found = measure(cluster, child, seconds)
                    change_s = child.apply(size, min(CHANGED, size))
                    yield Row(size, 2 * size, wanted, apply_s, change_s=change_s, **found)
        finally:
            pods.close()


LEAST_SETTLE_S = 15.0
"""After an apply the controller tests the shadows that it adopts; each one's first canary takes longer."""


_COLUMNS = (
    "partitions",
    ">pods",
    ">nodes",
    ">apply s",
    ">% of a core",
    ">MB",
    ">requests/min",
    ">change s",
    "kinds",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="125,250,500,1000")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=1.0)
    given = parser.parse_args()
    shown, figures = table("a controller", *_COLUMNS), Figures()
    try:
        for row in rows([int(size) for size in given.sizes.split(",")], given.seconds, given.rate):
            kinds = ", ".join(f"{key} {rate:.0f}" for key, rate in sorted(row.requests.items()))
            counts = (str(row.partitions), str(row.pods), str(row.nodes))
            costs = (row.apply_s, row.cpu_percent, row.memory_mb, sum(row.requests.values()), row.change_s)
            shown.add_row(*counts, *(f"{cost:.1f}" for cost in costs), kinds)
            last = row
    except MissingProgram as error:
        print(f"no cluster can be started here: {error}", file=sys.stderr)
        return 1
    show(shown)
    figures.add(f"core at {last.partitions} partitions", last.cpu_percent, "%", at_most=AIM_PERCENT)
    figures.add(f"a change of {CHANGED} partitions", last.change_s, "s", at_most=AIM_CHANGE_S)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
