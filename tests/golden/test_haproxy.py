from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from controlplane.render.haproxy import HaproxyFrame, ServerLine, SlotLines, render_haproxy

pytestmark = pytest.mark.unit

HERE = Path(__file__).parent


NETWORK = {
    "certificate": "/state/certificate.pem",
    "client_ca": "/etc/ca.pem",
    "clients_map": "/state/clients.map",
    "grants_map": "/state/grants.map",
    "client_limits_map": "/state/client_limits.map",
    "audit": True,
}
GATES = {"gates_map": "/state/gates.map"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "haproxy.cfg"),
        ({"compress_answers": True}, "haproxy_compressing.cfg"),
        (NETWORK, "haproxy_network.cfg"),
        (GATES, "haproxy_gates.cfg"),
        ({"traced": True}, "haproxy_traced.cfg"),
    ],
)
def test_the_configuration_is_the_one_that_was_reviewed(options: dict[str, Any], expected: str) -> None:
    frame = HaproxyFrame(
        http_fd=5,
        grpc_fd=6,
        runtime_socket="/state/run/haproxy.sock",
        exporter_socket="/state/run/exporter.sock",
        refusals_script="/trisect/refusals.lua",
        gate_socket="/state/run/gate.sock",
        facade_http_socket="/state/run/facade_http.sock",
        facade_grpc_socket="/state/run/facade_grpc.sock",
        models_map="/state/models.map",
        checks_map="/state/checks.map",
        endpoint_limits_map="/state/endpoint_limits.map",
        refusals_map="/state/refusals.map",
        log_fd=7,
        process="h1",
        maxconn=4000,
        connections_a_source=2000,
        fingerprint="96.0123456789abcdef",
        threads=1,
        **{"compress_answers": False, **options},
    )
    slots = [
        SlotLines(
            0,
            (
                ServerLine("s0", "127.0.0.1", 9000, 9001, enabled=True),
                ServerLine("s1"),
                ServerLine("backup", "127.0.0.1", 9010, 9011, backup=True, enabled=True),
            ),
        ),
        SlotLines(1, (ServerLine("s0"), ServerLine("s1"), ServerLine("backup", backup=True))),
    ]
    text = render_haproxy(frame, slots)
    if os.environ.get("UPDATE_GOLDEN"):
        (HERE / expected).write_text(text)
    assert text == (HERE / expected).read_text()
