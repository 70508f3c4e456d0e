"""Answers as a Triton's statistics and configuration do, and remembers what was asked. No model runs."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

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

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            count = {"count": executions * len(asked), "ns": executions * 10**6 * len(asked)}
            batch = {"batch_size": 4, "compute_infer": count, "compute_input": count, "compute_output": count}
            totals = {"success": count, "queue": count, "fail": {"count": failures * len(asked)}}
            done = {"inference_count": 4 * count["count"], "execution_count": count["count"]}
            model = {"name": self.path.split("/")[3], "version": "1", **done} if "/stats" in self.path else {}
            stats = {"model_stats": [{**model, "inference_stats": totals, "batch_stats": [batch]}]}
            self._answer(stats if self.path.endswith("/stats") else config)

        def do_POST(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            if inference is not None:
                inference.wait(30.0)
            self._answer({"error": refusal} if refusal else {}, 503 if refusal else 200)

        def _answer(self, content: object, status: int = 200) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server.server_port, asked
        finally:
            if inference is not None:
                inference.set()
            server.shutdown()
