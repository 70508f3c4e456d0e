"""Nodes and pods that only claim to run: objects of a real API server without a kubelet or a Triton.

Nodes are registered as objects. A pod that the scheduler placed is patched to Running and Ready, with a
loopback address at which something answers as its Triton would; a deleted one is forgotten.
"""

import asyncio
import contextlib
import ipaddress
import json
import sys
import threading
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import aiohttp
from kube.cluster import Cluster
from kube.control_plane import URL

from controlplane.domain.fleet import ServerState
from launchers.kubernetes import names
from launchers.triton import labels, program

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


NODE_CORES = 4
_FIRST_ADDRESS = ipaddress.IPv4Address("127.88.0.1")


def register_nodes(cluster: Cluster, first: int, end: int) -> None:
    """Make the nodes from `first` to before `end`, which are ready and take pods."""
    resources = {"cpu": str(NODE_CORES), "memory": "64Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "claimed"}
    for number in range(first, end):
        name = f"node-{number:03}"
        cluster.create(
            "/api/v1/nodes", {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}
        )
        status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
        cluster.merge(f"/api/v1/nodes/{name}/status", {"status": status})
        # Admission taints each new node until its lifecycle controller, which does not run here, has seen it.
        cluster.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})


class ClaimedPods:
    """The pods of one namespace, from a watch in a thread."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._token = cluster.api.headers["Authorization"]
        self._trust = cluster.control_plane.trust()
        self._where = f"/api/v1/namespaces/{namespace}/pods"
        self._servers: dict[str, asyncio.Server | None] = {}
        self._addresses = map(str, (_FIRST_ADDRESS + i for i in range(60_000)))
        self._loop = asyncio.new_event_loop()
        self._watching = self._loop.create_task(self._watch())
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has failed
            self._loop.call_soon_threadsafe(self._watching.cancel)
        self._thread.join(30)

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._watching)

    async def _watch(self) -> None:
        headers = {"Authorization": self._token}
        connections = aiohttp.TCPConnector(ssl=self._trust, limit=8)
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(URL, headers=headers, connector=connections, timeout=timeout) as session,
            asyncio.TaskGroup() as tasks,
        ):
            while True:  # a watch without a version begins with all pods, so a new one misses none
                async for event in self._events(session):
                    tasks.create_task(self._see(session, event["type"], event["object"]))

    async def _events(self, session: aiohttp.ClientSession) -> AsyncIterator[dict[str, Any]]:
        """Events until the server ends the watch."""
        asked = session.get(self._where, params={"watch": "true"}, read_bufsize=2**24)
        async with asked as stream:
            async for line in stream.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    print(f"the watch of claimed pods begins anew: {event['object']}", file=sys.stderr)
                    return
                yield event

    async def _see(self, session: aiohttp.ClientSession, kind: str, pod: dict[str, Any]) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        if kind == "DELETED":
            if (server := self._servers.pop(uid, None)) is not None:
                server.close()
        elif "deletionTimestamp" in pod["metadata"]:
            async with session.delete(f"{self._where}/{name}", params={"gracePeriodSeconds": "0"}):
                pass
        elif "nodeName" in pod["spec"] and uid not in self._servers:
            self._servers[uid] = None
            address = next(self._addresses)
            told = pod["metadata"]["annotations"][names.SERVER]
            claimed = labels.server_of(told, id=uid, state=ServerState.RUNNING)
            answers = partial(ClaimedTriton, claimed.name)
            self._servers[uid] = await self._loop.create_server(answers, address, program.PORTS[0])
            kind_of_patch = {"Content-Type": "application/merge-patch+json"}
            change = {"status": _status(address)}
            async with session.patch(
                f"{self._where}/{name}/status", json=change, headers=kind_of_patch
            ) as done:
                done.raise_for_status()


def _status(address: str) -> dict[str, Any]:
    now = "2026-01-01T00:00:00Z"
    conditions = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    container = {
        "name": names.CONTAINER,
        "image": "claimed",
        "imageID": "claimed",
        "ready": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": now}},
    }
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in conditions],
        "containerStatuses": [container],
    }
