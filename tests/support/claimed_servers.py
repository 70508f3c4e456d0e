"""Servers that only claim to run: a launcher of them, and what answers queries and canaries for all.

`python claimed_servers.py` listens on a free port of this host, prints it, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Collection
from functools import partial

from controlplane.domain.device import DeviceReading, HeldDevice
from controlplane.domain.fleet import Batches, Server, ServerSpec, ServerState, ShareUsage
from controlplane.domain.observation import News
from controlplane.ports import Capability, GivesWay, always

_CONFIG = {
    "backend": "python",
    "max_batch_size": 8,
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [4]}],
}


class ClaimedTriton(asyncio.Protocol):
    """One connection to a claimed server of this name."""

    def __init__(self, name: str) -> None:
        self._metadata = json.dumps({"name": name, "version": "2.51.0", "extensions": []}).encode()
        self._transport: asyncio.Transport | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if found and len(body) >= int(lengths[0].split(b":")[1] if lengths else 0):
            self._received = b""
            self._answer(head.split(b" ", 2)[1].decode())

    def _answer(self, path: str) -> None:
        body = b"{}"
        if path == "/v2":
            body = self._metadata
        elif path.endswith("/config"):
            body = json.dumps({"name": path.split("/")[-2], **_CONFIG}).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        assert self._transport is not None
        self._transport.write(head.encode() + body)


class ClaimingLauncher:
    """A launcher in memory. One port answers for all servers; requests name them by their gRPC ports."""

    name = "claiming"

    def __init__(self, http_port: int) -> None:
        self._http_port = http_port
        self._ports = itertools.count(1)
        self._servers: dict[str, Server] = {}

    def enforcement(self) -> str:
        return "claimed"

    def capabilities(self) -> tuple[Capability, ...]:
        return ()

    def command(self, spec: ServerSpec) -> str:
        return spec.name

    def inventory(self) -> tuple[HeldDevice, ...]:
        return ()

    def start(self, spec: ServerSpec, *, deadline_s: float, gives_way: GivesWay = always) -> Server:
        port = next(self._ports)
        made = Server(str(port), spec, ServerState.RUNNING, "127.0.0.1", self._http_port, port, port)
        return self._servers.setdefault(spec.name, made)

    def servers(self, fleet: str) -> tuple[Server, ...]:
        return tuple(self._servers[name] for name in sorted(self._servers))

    def stop(self, server: Server, *, drain_s: float) -> None:
        self._servers.pop(server.name, None)

    def resize(self, server: Server, percent: float) -> None:
        pass

    def batch_library(self) -> None:
        return None

    def set_batches(self, server: Server, batches: Batches) -> None:
        pass

    def watch(self, fleet: str) -> _NoNews:
        return _NoNews()

    def reading(self, device: str) -> DeviceReading:
        return DeviceReading()

    def usage(self, server: Server) -> ShareUsage:
        return ShareUsage(None, None, None)

    def log(self, server: Server) -> str:
        return ""

    def quota_use(self, server: Server) -> None:
        return None

    def sweep(self, fleet: str) -> tuple[str, ...]:
        return ()


class _NoNews:
    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        return ()

    def close(self) -> None:
        pass


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(partial(ClaimedTriton, "claimed"), "127.0.0.1", 0, backlog=1024)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve())
