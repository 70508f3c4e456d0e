"""A model of a known pace, and clients that keep its queue full."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from background import Clients, until
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


class BatchLoad(Clients):
    """Clients that send one request after another to each endpoint."""

    def __init__(self, host: Ctl, endpoints: Sequence[str]) -> None:
        super().__init__(CLIENTS * len(endpoints))
        self._urls = [f"http://127.0.0.1:{host.http}/v2/models/{e}/infer" for e in endpoints]

    def await_more(self, count: int, deadline_s: float = 60.0) -> None:
        """Return once every endpoint has given so many answers more."""
        before = self._by_endpoint()
        until(
            lambda: all(now >= n + count for now, n in zip(self._by_endpoint(), before, strict=True)),
            deadline_s,
            f"{count} more answers of each endpoint",
        )

    def _by_endpoint(self) -> list[int]:
        return [sum(self.answered[i :: len(self._urls)]) for i in range(len(self._urls))]

    def call(self, number: int) -> Callable[[], object]:
        """One inference of its endpoint."""
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        body = json.dumps({"inputs": [tensor]}).encode()

        def send() -> None:
            request = urllib.request.Request(self._urls[number % len(self._urls)], body)
            with urllib.request.urlopen(request, timeout=30) as answer:
                answer.read()

        return send
