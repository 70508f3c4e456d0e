"""A controller of up to 1,000 partitions against a real API server, with pods that only claim to run.

    KUBEBUILDER_ASSETS=FOLDER .venv/bin/python -m benchmarks.kubernetes.scale [--sizes 125,250,500,1000]
        [--seconds 30] [--rate 1]

Needs the programs that `make test-kubernetes` needs. etcd, API server and scheduler are real; nodes are
objects, a quarter as many as partitions, and pods are patched to Running. The gateway is left out. For each
size: the time of the apply, then the steady state's CPU time, memory and API requests, with RATE requests a
second that end at each partition; last the time of an apply that changes 50 partitions. The aims at the
largest size: at most 20 % of a core, and 60 s for the change.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kube import cluster as clusters
from kube.cluster import Cluster
from kube.processes import MissingProgram

from benchmarks.kubernetes import many_partitions as many
from benchmarks.kubernetes.claimed_pods import NODE_CORES, ClaimedPods, register_nodes
from benchmarks.kubernetes.controller_alone import NAMESPACE
from benchmarks.kubernetes.many_partitions import AloneController
from controlplane.runtime.controller.observer import CANARIES_RPS

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

    @property
    def requests_total(self) -> float:
        return sum(self.requests.values())


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


def make_namespace(cluster: Cluster) -> None:
    """Make the namespace and, as no controller does it, the account without which no pod is admitted."""
    cluster.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    where = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    cluster.create(where, {"metadata": {"name": "default"}})


def rows(sizes: list[int], seconds: float, rate_rps: float) -> Iterator[Row]:
    """Each size after the one before, on the same cluster."""
    with (
        clusters.running(names=()) as cluster,
        tempfile.TemporaryDirectory(prefix="trisect-scale-") as folder,
    ):
        state = Path(folder)
        shutil.copytree(many.MODELS, state / "models")
        make_namespace(cluster)
        pods = ClaimedPods(cluster, NAMESPACE)
        registered = 0
        try:
            with many.controller(state, rate_rps, {"KUBECONFIG": str(cluster.kubeconfig)}) as child:
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


def line_of(row: Row) -> str:
    """A row of the table, with the API requests by kind."""
    kinds = ", ".join(f"{key} {rate:.0f}" for key, rate in sorted(row.requests.items()))
    return (
        f"{row.partitions:10} {row.pods:6} {row.nodes:6} {row.apply_s:8.1f} {row.cpu_percent:7.1f} "
        f"{row.memory_mb:6.0f} {row.requests_total:8.0f} {row.change_s:8.1f}  {kinds}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="125,250,500,1000")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = []
    if not given.json:
        titles, widths = (
            ["partitions", "pods", "nodes", "apply_s", "%_core", "MB", "req/min", "change_s"],
            (10, 6, 6, 8, 7, 6, 8, 8),
        )
        print(" ".join(f"{title:>{width}}" for title, width in zip(titles, widths, strict=True)))
    try:
        for row in rows([int(size) for size in given.sizes.split(",")], given.seconds, given.rate):
            found.append(row)
            if not given.json:
                print(line_of(row), flush=True)
    except MissingProgram as error:
        print(f"no cluster can be started here: {error}", file=sys.stderr)
        return 1
    last = found[-1]
    if given.json:
        print(json.dumps([asdict(row) for row in found]))
    else:
        ratio = last.cpu_percent / AIM_PERCENT
        ours = f"controller at {last.partitions} partitions: ours {last.cpu_percent:.1f} %"
        print(f"{ours}, aim {AIM_PERCENT:g} %, ratio {ratio:.2f}")
        changed = f"a change of {CHANGED} partitions: ours {last.change_s:.1f} s, aim {AIM_CHANGE_S:g} s"
        print(f"{changed}, ratio {last.change_s / AIM_CHANGE_S:.2f}")
    return 0 if last.cpu_percent <= AIM_PERCENT and last.change_s <= AIM_CHANGE_S else 1


if __name__ == "__main__":
    sys.exit(main())
