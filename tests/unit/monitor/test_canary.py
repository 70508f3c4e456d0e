from __future__ import annotations

import socket

import pytest

from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.monitor.canary import Canaries

pytestmark = pytest.mark.unit


def test_a_canary_under_way_to_a_server_that_is_forgotten_leaves_nothing() -> None:
    canaries = Canaries(deadline_s=0.2)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        spec = ServerSpec(Labels("f", "p", "W1", Role.ACTIVE, "r"), "/r", ("w1",), "cpu-0", 50.0)
        server = Server("1", spec, ServerState.RUNNING, "127.0.0.1", deaf.getsockname()[1], 9, 9)
        canaries.ask(server, spec.endpoints)
        canaries.forget(server.name)
        canaries._pool.shutdown()
    assert canaries.verdict(server.name) is None
