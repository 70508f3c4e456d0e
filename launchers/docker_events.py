"""The engine's stream of events: containers that die, are paused, or lose a process to their memory limit."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Server
from controlplane.domain.observation import News
from launchers import containers, docker_engine

_AGAIN_S = 0.5
_END_S = 5.0


class EngineEvents:
    """Reads the stream in a thread, and opens it anew where the engine was restarted."""

    def __init__(self, address: str, fleet: str) -> None:
        self._address = address
        self._filters = {
            "type": "container",
            "label": f"{containers.FLEET_LABEL}={fleet}",
            # Podman knows a death by the second name.
            "event": ["die", "died", "oom", "pause"],
        }
        # By container: a name may come again, and what ended earlier is no news of it.
        self._heard: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._since_s = time.time()
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self._stream: Any = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="engine-events", daemon=True)
        self._thread.start()

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        """Those of these servers the stream named."""
        asked = {s.id: s.name for s in servers}
        self._told &= asked.keys()
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                one, why = self._heard.get_nowait()
                if one in asked and one not in self._told:
                    self._told.add(one)
                    found.append(News((asked[one],), why))
        return tuple(found)

    def close(self) -> None:
        """End the stream and the thread."""
        self._closing.set()
        with self._lock:
            if self._stream is not None:
                self._stream.close()
        self._thread.join(_END_S)

    def _listen(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(EngineError):
                self._read()
            self._closing.wait(_AGAIN_S)

    def _read(self) -> None:
        """Until the stream ends. Raises EngineError where the engine is away."""
        with docker_engine.engine(self._address) as client:
            with self._lock:
                if self._closing.is_set():
                    return
                # What was missed between two streams is told again by the engine.
                since = f"{self._since_s:.6f}"
                self._stream = stream = client.events(since=since, decode=True, filters=self._filters)
            try:
                for told in stream:
                    self._hear(told)
            except (OSError, ValueError):
                return  # closed while it was read
            finally:
                with self._lock:
                    self._stream = None

    def _hear(self, told: Mapping[str, Any]) -> None:
        self._since_s = told["timeNano"] / 1e9 + 1e-6
        actor = told["Actor"]
        self._heard.put((actor["ID"], reason(told["Action"], actor["Attributes"])))


def reason(action: str, about: Mapping[str, str]) -> str:
    """An event in words."""
    match action:
        case "oom":
            return "the kernel killed a process of it: it needs more than its memory limit (memory_mb)"
        case "pause":
            return "its container was paused"
        case _:
            return f"its container ended with exit code {about.get('exitCode', 'unknown')}"
