"""A model of a known pace, and clients that keep its queue full."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from background import until
from ctl_fleet import Ctl

CLIENTS = 12
"""For each endpoint: more than its largest batch and the next one together hold, so that batches fill."""
_MODEL = """\
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.03)
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]) for x in inputs]
"""
_CONFIG = """\
backend: "python"
max_batch_size: 8
input [ { name: "X", data_type: TYPE_FP32, dims: [ 4 ] } ]
output [ { name: "Y", data_type: TYPE_FP32, dims: [ 4 ] } ]
dynamic_batching { }
"""


def write_paced_model(repository: Path, name: str = "paced") -> None:
    """Write a model that sleeps for 30 ms for each batch, whatever its size."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_MODEL)
    (version.parent / "config.pbtxt").write_text(_CONFIG)


class BatchLoad:
    """Clients that send one request after another to each endpoint; `failed` has each failure."""

    def __init__(self, host: Ctl, endpoints: Sequence[str]) -> None:
        self._stop = threading.Event()
        self._done = dict.fromkeys(endpoints, 0)
        self.failed: list[str] = []
        address = f"http://127.0.0.1:{host.http}/v2/models"
        self._threads = [
            threading.Thread(target=self._run, args=(endpoint, f"{address}/{endpoint}/infer"))
            for endpoint in endpoints
            for _ in range(CLIENTS)
        ]

    def __enter__(self) -> BatchLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def await_more(self, count: int, deadline_s: float = 60.0) -> None:
        """Return once every endpoint has given so many answers more."""
        before = dict(self._done)
        until(
            lambda: all(self._done[e] >= n + count for e, n in before.items()),
            deadline_s,
            f"{count} more answers of each endpoint",
        )

    def _run(self, endpoint: str, url: str) -> None:
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        body = json.dumps({"inputs": [tensor]}).encode()
        while not self._stop.is_set():
            try:
                with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as answer:
                    answer.read()
                self._done[endpoint] += 1
            except OSError as error:
                self.failed.append(f"{endpoint}: {error}")
