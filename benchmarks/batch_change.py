"""What a change of the batch does to a model that serves: the repository API's load, and a second server.

`.venv/bin/python -m benchmarks.batch_change [--runs 5]`. A model keeps its instance for a known time and
serves Poisson requests at 60 % of its capacity on the real Triton. In the middle the batch goes from 4 to 8:
by `load` with a config override on the running server (ours), or not at all (the reference). Printed are P99
and the longest latency of the requests that arrived within the 5 seconds after, how long the call took, and
how many requests failed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bare_triton import HOST, BareTriton, bare_triton
from sleeping_triton import Served, ahead_of_others, lay_out, request

from benchmarks.harness import Figures
from controlplane.profiler.load import open_loop, poisson_times

BEFORE, AFTER = 4, 8
LOAD = 0.6
SECONDS, CHANGE_S, WINDOW_S = 15.0, 5.0, 5.0


@dataclass(frozen=True)
class Run:
    """Latencies in ms of the requests that arrived within the window after the change."""

    p99_ms: float
    longest_ms: float
    call_s: float
    batch: int


def override(running: BareTriton, name: str, batch: int) -> None:
    """Load the model again, with another preferred batch."""
    connection = http.client.HTTPConnection(HOST, running.http_port, timeout=60)
    connection.request("GET", f"/v2/models/{name}/config")
    config = json.loads(connection.getresponse().read())
    config["dynamic_batching"]["preferred_batch_size"] = [batch]
    body = json.dumps({"parameters": {"config": json.dumps(config)}})
    connection.request("POST", f"/v2/repository/models/{name}/load", body)
    answer = connection.getresponse()
    told = answer.read()
    assert answer.status == 200, told
    connection.close()


def served_batch(running: BareTriton, name: str) -> int:
    connection = http.client.HTTPConnection(HOST, running.http_port, timeout=60)
    connection.request("GET", f"/v2/models/{name}/config")
    config = json.loads(connection.getresponse().read())
    connection.close()
    return int(config["dynamic_batching"]["preferred_batch_size"][0])


def run(*, change: bool, seed: int) -> Run:
    model = Served(BEFORE, 1, 0)
    took: list[float] = []
    with ahead_of_others(), tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "models")
        lay_out(repository, model)
        config = repository / model.name / "config.pbtxt"
        config.write_text(config.read_text().replace("max_batch_size: 4", "max_batch_size: 32"))
        explicit = ("--model-control-mode=explicit", f"--load-model={model.name}")
        with bare_triton(repository, Path(folder, "log"), *explicit) as running:

            def changed() -> None:
                time.sleep(CHANGE_S)
                began = time.monotonic()
                override(running, model.name, AFTER)
                took.append(time.monotonic() - began)

            changer = threading.Thread(target=changed)
            if change:
                changer.start()
            due = poisson_times(LOAD * model.capacity_rps, SECONDS, np.random.default_rng(seed))
            began = time.monotonic()
            answers = open_loop(running.grpc, request(model), due, deadline_s=30.0)
            if change:
                changer.join()
            arrived_s = answers.ended_s - answers.latency_ms / 1000.0 - began
            window = answers.latency_ms[(arrived_s >= CHANGE_S) & (arrived_s < CHANGE_S + WINDOW_S)]
            return Run(
                float(np.quantile(window, 0.99)),
                float(window.max()),
                took[0] if took else 0.0,
                served_batch(running, model.name),
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    figures, ratios = Figures(), []
    print("run  batch after  load took s  P99 ms  longest ms   without: P99 ms  longest ms")
    for seed in range(given.runs):
        ours, reference = run(change=True, seed=seed), run(change=False, seed=seed)
        assert (ours.batch, reference.batch) == (AFTER, BEFORE)
        print(
            f"{seed:3d} {ours.batch:12d} {ours.call_s:12.2f} {ours.p99_ms:7.1f} {ours.longest_ms:11.1f}"
            f" {reference.p99_ms:17.1f} {reference.longest_ms:11.1f}",
            flush=True,
        )
        ratios.append(ours.p99_ms / reference.p99_ms)
    figures.add("P99 with a change over without, median of the runs", statistics.median(ratios), at_most=1.5)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
