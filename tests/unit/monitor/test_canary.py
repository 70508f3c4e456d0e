from __future__ import annotations

import socket

import pytest
from asked_triton import asked_triton
from no_descriptors import without_descriptors

from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.monitor.canary import Canaries
from controlplane.runtime.clock import wait_until

pytestmark = pytest.mark.unit


def test_an_answer_that_is_none_is_a_failure_and_the_next_one_is_asked_for() -> None:
    with asked_triton(config={"input": [{"name": "x"}]}) as (port, asked):
        spec = ServerSpec(Labels("f", "p", "W1", Role.ACTIVE, "r"), "/r", ("w1",), "cpu-0", 50.0)
        server = Server("1", spec, ServerState.RUNNING, "127.0.0.1", port, 9, 9)
        canaries = Canaries(deadline_s=30.0)
        for failures in (1, 2):
            canaries.ask(server, spec.endpoints)
            assert wait_until(
                lambda n=failures: (told := canaries.verdict(server.name)) is not None and told.failures == n,
                deadline_s=30.0,
            )
        canaries.close()
    assert len(asked) == 2


def test_a_canary_under_way_to_a_server_that_is_forgotten_leaves_nothing() -> None:
    canaries = Canaries(deadline_s=0.2)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        spec = ServerSpec(Labels("f", "p", "W1", Role.ACTIVE, "r"), "/r", ("w1",), "cpu-0", 50.0)
        server = Server("1", spec, ServerState.RUNNING, "127.0.0.1", deaf.getsockname()[1], 9, 9)
        canaries.ask(server, spec.endpoints)
        canaries.forget(server.name)
        canaries._pool.shutdown()
    assert canaries.verdict(server.name) is None


def test_a_canary_that_could_not_be_sent_says_nothing_of_its_server() -> None:
    with asked_triton(config={"input": [{"name": "x"}]}) as (port, _):
        spec = ServerSpec(Labels("f", "p", "W1", Role.ACTIVE, "r"), "/r", ("w1",), "cpu-0", 50.0)
        server = Server("1", spec, ServerState.RUNNING, "127.0.0.1", port, 9, 9)
        canaries = Canaries(deadline_s=30.0)
        with without_descriptors():
            canaries.ask(server, spec.endpoints)
            canaries._pool.shutdown()
    assert canaries.verdict(server.name) is None
