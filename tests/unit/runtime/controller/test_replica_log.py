"""The request logs of several replicas, over real control ports, with a monitor that the test speaks for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from monitor_log import accepted, line, listening

from controlplane.domain.fleet import GatewayConfig
from controlplane.gateway.replicas.agent import ControlServer, Replica
from controlplane.monitor.records import Record
from controlplane.runtime.controller.answers import ReplicaLogs

TOKEN = "the-token"


@contextlib.contextmanager
def replica(monitor: Path) -> Iterator[str]:
    """A control port; its address."""
    gateway: Any = None
    server = ControlServer(Replica(gateway, GatewayConfig(), monitor), ("127.0.0.1", 0), TOKEN)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def taken(logs: ReplicaLogs, count: int) -> list[Record]:
    found: list[Record] = []
    deadline = time.monotonic() + 30.0
    while len(found) < count and time.monotonic() < deadline:
        found += logs.take()
        time.sleep(0.005)
    return found


def test_the_logs_of_all_replicas_are_one(nearby: Path) -> None:
    places = [nearby / "one", nearby / "two"]
    with contextlib.ExitStack() as stack:
        monitors = [stack.enter_context(listening(place)) for place in places]
        addresses = [stack.enter_context(replica(place)) for place in places]
        logs = stack.enter_context(contextlib.closing(ReplicaLogs(lambda: addresses, TOKEN)))
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(logs.take)
            streams = [stack.enter_context(accepted(monitor)) for monitor in monitors]
            assert first.result(30) == []
        for number, stream in enumerate(streams, start=1):
            stream.sendall(line(number))
        assert sorted(record.number for record in taken(logs, 2)) == [1, 2]
        assert logs.heard_since_s < time.monotonic()
        del addresses[0]
        streams[1].sendall(line(3))
        assert [record.number for record in taken(logs, 1)] == [3]


def test_without_a_replica_that_answers_nothing_is_heard() -> None:
    with contextlib.closing(ReplicaLogs(lambda: ["127.0.0.1:1"], TOKEN)) as logs:
        assert logs.take() == []
        before = time.monotonic()
        assert logs.heard_since_s >= before
