"""What a model's own server says of it, by a server that takes its time."""

import threading
from collections.abc import Iterator

import pytest
from http_server import HOST, Quiet, serving

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
    class Handler(Quiet):
        def do_GET(self) -> None:
            awake.wait(60)
            self.answer(CONFIG)

    with serving(Handler) as port:
        yield Backend("one", HOST, port, 1)
        awake.set()


def test_a_server_has_as_long_as_it_is_given(server: Backend, awake: threading.Event) -> None:
    gone = Backend("gone", "127.0.0.1", 1, 1)
    assert traits_of("m", (server,), patience_s=0.05) is None
    awake.set()
    assert traits_of("m", (gone, server), patience_s=30.0) == Traits(sequence_idle_us=7, executes="m")
