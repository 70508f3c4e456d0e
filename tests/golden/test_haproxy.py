import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from build import gateway_settings

from controlplane.domain.fleet import AccessConfig, Backend
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.render.haproxy import HaproxyStart, SlotLines, backup_line, render_haproxy

HERE = Path(__file__).parent


SETTINGS = gateway_settings(slots=2)
NETWORK = AccessConfig(certificate="tls.pem", key="tls.key", client_ca="/etc/ca.pem", tokens=True, audit=True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "haproxy.cfg"),
        ({"compress_answers": True}, "haproxy_compressing.cfg"),
        ({"protection": NETWORK}, "haproxy_network.cfg"),
        ({"late_binding": True}, "haproxy_gates.cfg"),
        ({"trace_endpoint": "http://collector:4318"}, "haproxy_traced.cfg"),
    ],
)
def test_the_configuration_is_the_one_that_was_reviewed(options: dict[str, Any], expected: str) -> None:
    start = HaproxyStart(
        http_fd=5,
        grpc_fd=6,
        refusals_script=Path("/trisect/refusals.lua"),
        log_fd=7,
        process="h1",
        maxconn=4000,
        checks=1296,
        connections_a_source=2000,
        fingerprint="96.0123456789abcdef",
        threads=1,
    )
    first, backup = (
        Backend("a", "127.0.0.1", 9000, 9001),
        Backend("b", "unix:/state/servers/0f/t", 8000, 8001),
    )
    slots = [
        SlotLines(0, {first.instance: first, backup_line(backup): backup}),
        SlotLines(1, {}),
    ]
    paths = GatewayPaths(Path("/state"), Path("/state/run"))
    text = render_haproxy(replace(SETTINGS, **options), paths, start, slots)
    if os.environ.get("UPDATE_GOLDEN"):
        (HERE / expected).write_text(text)
    assert text == (HERE / expected).read_text()
    sections = re.findall(r"^(?:backend|frontend) (\S+)", text, re.MULTILINE)
    assert len(set(sections)) == len(sections)  # HAProxy 3.3 takes no name twice
