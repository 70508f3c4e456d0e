"""The engine's stream of events: containers that die, are stopped or paused, or lose a process to a limit.

Read without the SDK, which leaves the socket of a stream open whose engine ends.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import signal
import socket
import threading
import time
import urllib.parse
from collections.abc import Collection, Mapping
from typing import Any

from controlplane.domain.fleet import Server
from controlplane.domain.observation import OUT_OF_MEMORY, Health, News, out_of_memory
from launchers.docker import containers

_AGAIN_S = 0.5
_END_S = 5.0
_KILLED = "its container ended with exit code 137"
_STOPS = frozenset({str(containers.STOP_SIGNAL.value), str(signal.SIGTERM.value)})


class ContainerWatcher:
    """Reads the stream in a thread, and opens it again where the engine was restarted."""

    def __init__(self, address: str, fleet: str) -> None:
        self._path = address.removeprefix("unix://")
        self._filters = {
            "type": ["container"],
            "label": [f"{containers.FLEET_LABEL}={fleet}"],
            # Podman calls a death by the second name.
            "event": ["die", "died", "oom", "kill", "pause", "unpause"],
        }
        # By container id: a name may be used again, and an earlier end is not its.
        self._heard: queue.SimpleQueue[tuple[str, Health, str]] = queue.SimpleQueue()
        self._since_s = time.time()
        self._told: dict[str, Health] = {}
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="container-watcher", daemon=True)
        self._thread.start()

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        """Return the news of these servers."""
        if self._heard.empty():
            return ()
        asked = {s.id: s for s in servers}
        self._told = {one: health for one, health in self._told.items() if one in asked}
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                one, health, why = self._heard.get_nowait()
                before = self._told.get(one)
                # If Triton itself was killed for its memory, its container's end follows.
                if one not in asked or before in (Health.GONE, health):
                    continue
                self._told[one] = health
                oom = health is Health.IMPAIRED or (before is Health.IMPAIRED and why == _KILLED)
                reason = out_of_memory(asked[one]) if oom else why
                found.append(News((asked[one].name,), reason, health=health))
        return tuple(found)

    def close(self) -> None:
        """End the stream and the thread."""
        self._closing.set()
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(_END_S)

    def _listen(self) -> None:
        while not self._closing.is_set():
            # Try again where the engine is away or ends.
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                self._read()
            self._closing.wait(_AGAIN_S)

    def _read(self) -> None:
        """Read events until the stream ends."""
        with socket.socket(socket.AF_UNIX) as opened:
            with self._lock:
                if self._closing.is_set():
                    return
                self._socket = opened
            try:
                opened.connect(self._path)
                for line in self._stream(opened):
                    self._hear(json.loads(line))
            finally:
                with self._lock:
                    self._socket = None

    def _stream(self, opened: socket.socket) -> http.client.HTTPResponse:
        # The engine repeats the events between two streams.
        asked = {"since": f"{self._since_s:.6f}", "filters": json.dumps(self._filters)}
        connection = http.client.HTTPConnection("localhost")
        connection.sock = opened
        connection.request("GET", f"/events?{urllib.parse.urlencode(asked)}")
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise http.client.HTTPException(answer.reason)
        return answer

    def _hear(self, told: Mapping[str, Any]) -> None:
        self._since_s = told["timeNano"] / 1e9 + 1e-6
        actor = told["Actor"]
        news = meaning(told["Action"], actor["Attributes"])
        if news is not None:
            self._heard.put((actor["ID"], *news))


def meaning(action: str, about: Mapping[str, str]) -> tuple[Health, str] | None:
    """Return the health that an event leaves a container with, and the reason; None for other signals."""
    match action:
        case "oom":
            return Health.IMPAIRED, OUT_OF_MEMORY
        case "pause":
            return Health.PAUSED, "its container was paused"
        case "unpause":
            return Health.READY, ""
        case "kill" if about.get("signal") in _STOPS:
            return Health.ENDING, "another program stops its container"
        case "kill":
            return None
        case _:
            return Health.GONE, f"its container ended with exit code {about.get('exitCode', 'unknown')}"
