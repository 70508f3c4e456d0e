"""Lines that another process of the host sends to the gateway's log are not counted."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import gateway_rig as rig
import pytest

from controlplane.files.gateway import read_settings
from controlplane.gateway.places import Places
from controlplane.monitor.telemetry import GatewayTelemetry

pytestmark = pytest.mark.e2e


def test_forged_lines_are_not_counted(tmp_path: Path) -> None:
    places = Places.of(tmp_path / "gateway")
    with rig.a_gateway(tmp_path) as (gateway, _):
        settings = read_settings(places.settings)
        telemetry = GatewayTelemetry(gateway.telemetry_socket)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            address = ("127.0.0.1", settings.log_port)
            for opening in ("", "0" * 16 + " "):
                sender.sendto(f"{opening}{_line('forged', number=1)}".encode(), address)
            sender.sendto(f"{settings.log_secret} {_line('genuine', number=1)}".encode(), address)
        # Lines are read in order: after the genuine one the forged ones have been.
        rig.until(lambda: "genuine" in telemetry.windows(60.0))
        assert set(telemetry.windows(60.0)) == {"genuine"}


def _line(endpoint: str, number: int) -> str:
    now_us = int(time.time() * 1e6)
    return f"grpc:h1 {number} {endpoint} 127.0.0.1 9001 200 14 -- 1 1 {now_us - 1000} {now_us}"
