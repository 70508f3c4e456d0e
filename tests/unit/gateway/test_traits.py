"""What a model's own server says of it, by a server that takes its time."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from controlplane.domain.fleet import Backend
from controlplane.files.gateway import Traits
from controlplane.gateway.haproxy import traits_of

CONFIG = {"sequence_batching": {"max_sequence_idle_microseconds": 7}}


@pytest.fixture
def awake() -> threading.Event:
    """The server answers nobody before this."""
    return threading.Event()


@pytest.fixture
def server(awake: threading.Event) -> Iterator[Backend]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            awake.wait(60)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(CONFIG).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        try:
            yield Backend("one", "127.0.0.1", made.server_port, 1)
        finally:
            awake.set()
            made.shutdown()


def test_a_server_has_as_long_as_it_is_given(server: Backend, awake: threading.Event) -> None:
    gone = Backend("gone", "127.0.0.1", 1, 1)
    assert traits_of("m", (server,), patience_s=0.05) is None
    awake.set()
    assert traits_of("m", (gone, server), patience_s=30.0) == Traits(sequence_idle_us=7, executes="m")
