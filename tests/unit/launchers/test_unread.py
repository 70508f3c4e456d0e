from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from launchers.triton.readiness import unread

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_what_a_server_has_not_read_is_counted_at_its_ports_alone(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as server, socket.socket(family) as client:
        server.bind((host, 0))
        server.listen()
        port = server.getsockname()[1]
        assert unread(os.getpid(), {port}) == 0
        client.connect((host, port))
        assert unread(os.getpid(), {port}) == 1, "a connection that is not accepted"
        connection = server.accept()[0]
        with connection:
            client.sendall(b"x" * 100)
            assert connection.recv(1, socket.MSG_PEEK) == b"x"
            assert unread(os.getpid(), {port}) == 100
            assert unread(os.getpid(), {client.getsockname()[1]}) == 0
            connection.recv(100)
            assert unread(os.getpid(), {port}) == 0


def test_a_process_that_is_gone_counts_as_0(tmp_path: Path) -> None:
    assert unread(1, {80}, tmp_path) == 0
