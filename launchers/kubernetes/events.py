"""Ends of a fleet's pods, from a watch of the API server.

The watch goes on from the last version seen. Where the server has forgotten that version (410), or was away,
the pods are listed again and compared with what was known, so that no end is missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Collection
from dataclasses import dataclass

import lightkube
from lightkube.resources.core_v1 import Pod

from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.fleet import Server
from controlplane.domain.observation import Health, News, out_of_memory
from launchers.kubernetes import ends, names
from launchers.kubernetes.api import ClusterApi, Expired, told

_AGAIN_S = 0.5
_END_S = 5.0
_QUIET_S = 240
"""A watch without an event is opened anew after this time: its connection may have broken in silence."""


@dataclass(slots=True)
class _Known:
    """What was last seen of a pod."""

    restarts: int
    health: Health


class PodWatcher:
    """Watches the pods of a fleet in a thread. `api` is its own, which it closes."""

    def __init__(self, api: ClusterApi, fleet: str) -> None:
        self._api = api
        self._labels = names.fleet_labels(fleet)
        self._known: dict[str, _Known] = {}
        # By uid: a name may be used again, and an earlier end is not its.
        self._heard: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        # Before this returns, so that an end right after it is noticed.
        self._version = self._list()
        self._reading = self._loop.create_task(self._read())
        self._thread = threading.Thread(target=self._run, name="pod-watcher", daemon=True)
        self._thread.start()

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        """Return the news of these servers."""
        if self._heard.empty():
            return ()
        asked = {server.id: server for server in servers}
        found: dict[str, News] = {}
        with contextlib.suppress(queue.Empty):
            while True:
                news = self._heard.get_nowait()
                (uid,) = news.servers
                if uid in asked:
                    reason = news.reason.replace(ends.OOM, out_of_memory(asked[uid]))
                    found[uid] = news._replace(servers=(asked[uid].name,), reason=reason)
        return tuple(found.values())

    def close(self) -> None:
        """End the watch and the thread."""
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._reading.cancel)
        self._thread.join(_END_S)
        self._api.close()

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._reading)
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _read(self) -> None:
        """Read events for ever."""
        while True:
            try:
                if self._version is None:
                    self._version = await asyncio.to_thread(self._list)
                if self._version is not None:
                    await self._watch(self._version)
            except Expired:
                self._version = None
            except (EngineError, InputError):
                await asyncio.sleep(_AGAIN_S)

    async def _watch(self, version: str) -> None:
        """Read events from a version on until the server ends the stream. Raises EngineError, Expired."""
        client = self._api.watching()
        try:
            with told(self._api.server):
                await self._events(client, version)
        finally:
            await client.close()

    async def _events(self, client: lightkube.AsyncClient, version: str) -> None:
        stream = aiter(client.watch(Pod, labels=dict(self._labels), resource_version=version))
        with contextlib.suppress(TimeoutError):
            while True:
                kind, pod = await asyncio.wait_for(anext(stream), _QUIET_S)
                self._see(pod, deleted=kind == "DELETED")
                self._version = ends.version(pod) or self._version

    def _list(self) -> str | None:
        """Compare all pods with what was known; return the version to watch from, None without an answer."""
        try:
            pods, version = self._api.find_with_version(Pod, self._labels)
        except EngineError:
            return None
        present = {ends.uid(pod) for pod in pods}
        for uid in self._known.keys() - present:
            self._tell(uid, "its pod ended: it was deleted")
            del self._known[uid]
        for pod in pods:
            self._see(pod, deleted=False)
        return version

    def _see(self, pod: Pod, *, deleted: bool) -> None:
        """Compare one pod with what was known of it."""
        uid, now = ends.uid(pod), _Known(ends.restarts(pod), ends.health(pod))
        before = self._known.get(uid, now)
        if deleted:
            self._known.pop(uid, None)
            if before.health is not Health.GONE:
                self._tell(uid, ends.end(pod) or "its pod ended: it was deleted")
            return
        self._known[uid] = now
        if now.health is not before.health and now.health is not Health.READY:
            self._tell(uid, ends.end(pod) or "", now.health)
        elif now.restarts > before.restarts and before.health is Health.READY:
            self._tell(uid, ends.last_end(pod))

    def _tell(self, uid: str, reason: str, health: Health = Health.GONE) -> None:
        self._heard.put(News((uid,), reason, health=health))
