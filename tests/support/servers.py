"""Servers as values, for tests of what reads them."""

from __future__ import annotations

from typing import Any

from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState


def spec(partition: str = "p", *, device: str = "cpu-0", percent: float = 50.0, **more: Any) -> ServerSpec:
    """A spec; `fleet`, `plan` and `role` are of its labels."""
    labels = Labels(
        more.pop("fleet", "f"), more.pop("plan", "h"), partition, more.pop("role", Role.ACTIVE), "r"
    )
    return ServerSpec(labels, "/m", ("m",), device, percent, **more)


def server(of: ServerSpec, id: str = "1", **more: Any) -> Server:
    """A server that runs."""
    return Server(id, of, ServerState.RUNNING, "127.0.0.1", 1, 2, 3, **more)
