from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.domain.observation import BatchStatistics
from controlplane.monitor.triton import (
    StatisticsClient,
    compute_ms,
    difference,
    execution_ms,
    parse_statistics,
    queue_ms,
)

pytestmark = pytest.mark.unit


def answer(inferences: int, queue_ns: int, **batches: tuple[int, int]) -> dict[str, Any]:
    """As Triton answers; `b4=(2, 6_000_000)` are two executions of batch 4 that took 6 ms in all."""
    return {
        "model_stats": [
            {
                "name": "m",
                "version": "1",
                "inference_count": inferences,
                "execution_count": sum(n for n, _ in batches.values()),
                "inference_stats": {
                    "success": {"count": inferences, "ns": 10 * queue_ns},
                    "queue": {"count": inferences, "ns": queue_ns},
                },
                "batch_stats": [
                    {
                        "batch_size": int(name[1:]),
                        "compute_input": {"count": n, "ns": ns // 4},
                        "compute_infer": {"count": n, "ns": ns // 2},
                        "compute_output": {"count": n, "ns": ns // 4},
                    }
                    for name, (n, ns) in batches.items()
                ],
            }
        ]
    }


def test_a_window_gives_exact_means_per_batch_size() -> None:
    before = parse_statistics("m", answer(6, 1_000_000, b1=(2, 4_000_000), b4=(1, 8_000_000)))
    after = parse_statistics("m", answer(14, 5_000_000, b1=(2, 4_000_000), b4=(3, 20_000_000)))
    window = difference(before, after)
    assert (window.inferences, window.executions, window.successes, window.failures) == (8, 2, 8, 0)
    assert window.batches == {4: BatchStatistics(2, 3_000_000, 6_000_000, 3_000_000)}
    assert execution_ms(window.batches[4]) == pytest.approx(6.0)
    assert queue_ms(window) == pytest.approx(0.5)
    assert compute_ms(window) == pytest.approx(6.0)


def test_the_mean_over_batch_sizes_weighs_executions() -> None:
    statistics = parse_statistics("m", answer(6, 0, b1=(2, 4_000_000), b4=(1, 8_000_000)))
    assert compute_ms(statistics) == pytest.approx(4.0)


def test_a_model_that_never_ran_has_no_means() -> None:
    idle = parse_statistics("m", {"model_stats": [{"name": "m", "inference_stats": {}}]})
    assert (idle.inferences, idle.batches, queue_ms(idle), compute_ms(idle)) == (0, {}, None, None)


def test_versions_are_added_up() -> None:
    both = answer(2, 10, b1=(2, 4_000_000))
    both["model_stats"] *= 2
    statistics = parse_statistics("m", both)
    assert statistics.inferences == 4
    assert statistics.batches[1].executions == 4


def test_counters_that_went_back_are_no_window() -> None:
    before = parse_statistics("m", answer(6, 1_000, b1=(6, 4_000_000)))
    with pytest.raises(EngineError, match="decreased between two readings"):
        difference(before, parse_statistics("m", answer(7, 1_200, b1=(5, 5_000_000))))
    with pytest.raises(EngineError, match="decreased between two readings"):
        difference(before, parse_statistics("m", answer(1, 100, b2=(1, 5_000_000))))


class Closing(BaseHTTPRequestHandler):
    """Answers GET /v2, anything else with 400, and closes the connection without a word of it."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        known = self.path == "/v2"
        body = b'{"version": "2.51.0"}' if known else b"no such model"
        self.send_response(200 if known else 400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def server_at(port: int) -> Server:
    spec = ServerSpec(Labels("f", "plan", "a", Role.ACTIVE, "r"), "/models", ("m",), "cpu-0", 10.0)
    return Server("1", spec, ServerState.RUNNING, "127.0.0.1", port, 0, 0)


@pytest.fixture
def client() -> Iterator[StatisticsClient]:
    listening = HTTPServer(("127.0.0.1", 0), Closing)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    with StatisticsClient(server_at(listening.server_port)) as found:
        yield found
    listening.shutdown()
    listening.server_close()
    thread.join()


def test_a_connection_that_the_server_has_closed_is_opened_again(client: StatisticsClient) -> None:
    assert [client.version() for _ in range(3)] == ["2.51.0"] * 3


def test_a_refusal_is_an_error_with_the_servers_reason(client: StatisticsClient) -> None:
    with pytest.raises(EngineError, match="no such model"):
        client.read("m")
    assert client.version() == "2.51.0"


def test_a_server_that_is_gone_is_an_error() -> None:
    with StatisticsClient(server_at(1)) as gone, pytest.raises(EngineError, match="refused"):
        gone.version()
