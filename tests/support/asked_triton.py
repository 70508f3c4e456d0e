"""Answers as a Triton's statistics and configuration do, and remembers what was asked. No model runs."""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from http_server import Quiet, serving

CONFIG = {"max_batch_size": 4, "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}]}


@contextlib.contextmanager
def asked_triton(
    config: Mapping[str, Any] = CONFIG,
    *,
    executions: int = 10,
    failures: int = 0,
    refusal: str = "",
    inference: threading.Event | None = None,
) -> Iterator[tuple[int, list[str]]]:
    """Its port, and the paths it was asked, in order; each reading counts so many executions of four more.

    Each took 3 ms. Inferences get `refusal`, as from a full queue; they wait for `inference` or the end.
    """
    asked: list[str] = []

    class Handler(Quiet):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.path)
            count = {"count": executions * len(asked), "ns": executions * 10**6 * len(asked)}
            batch = {"batch_size": 4, "compute_infer": count, "compute_input": count, "compute_output": count}
            totals = {"success": count, "queue": count, "fail": {"count": failures * len(asked)}}
            done = {"inference_count": 4 * count["count"], "execution_count": count["count"]}
            model = {"name": self.path.split("/")[3], "version": "1", **done} if "/stats" in self.path else {}
            stats = {"model_stats": [{**model, "inference_stats": totals, "batch_stats": [batch]}]}
            self.answer(stats if self.path.endswith("/stats") else config)

        def do_POST(self) -> None:
            asked.append(self.path)
            self.body()
            if inference is not None:
                inference.wait(30.0)
            self.answer({"error": refusal} if refusal else {}, 503 if refusal else 200)

    with serving(Handler) as port:
        try:
            yield port, asked
        finally:
            if inference is not None:
                inference.set()
