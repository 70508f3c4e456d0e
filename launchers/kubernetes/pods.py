"""What the cluster says of a server's pod, in words why it ended or does not start, and a watch of pods.

The watch goes on from the last version seen. Where the server has forgotten that version (410), or was away,
the pods are listed again and compared with what was known, so that no end is missed. A kubelet restarts a
container in place, which no later list shows: so what was known outlives a watch, and each watch reports the
end of a pod that is still there.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import lightkube
from lightkube.models.core_v1 import ContainerState, ContainerStateTerminated, PodStatus
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod

from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.fleet import Server, ServerState
from controlplane.domain.observation import OUT_OF_MEMORY, Health, News, out_of_memory
from launchers.kubernetes import names
from launchers.kubernetes.api import ClusterApi, Expired, translate_errors
from launchers.triton import labels

_HOPELESS = {
    "ErrImageNeverPull": "the node has no such image, and it may not be pulled",
    "ImagePullBackOff": "its image cannot be pulled",
    "InvalidImageName": "its image has an invalid name",
    "CreateContainerConfigError": "its container cannot be configured",
    "CreateContainerError": "its container cannot be made",
    "RunContainerError": "its container cannot be started",
}
"""Reasons for which a container waits, and which time does not mend."""
_OOM = f"{OUT_OF_MEMORY}: the kernel killed it; see its memory limit (memory_mb)"
_NO_MPS = (
    "no node prepares a shared GPU while MPSSupport, a feature gate of the DRA driver, is off, or the driver "
    "is older than 0.5 (without multiUser)"
)
_PREPARED = "ContainerCreating"
"""The reason while a node prepares what a pod needs, its claims among it."""
_DELETED = "its pod ended: it was deleted"
_AGAIN_S = 0.5
_END_S = 5.0
_QUIET_S = 240
"""A watch without an event is opened anew after this time: its connection may have broken in silence."""


class PodState:
    """What the API server says of a server's pod. `uid` tells it from another one of its name."""

    def __init__(self, pod: Pod) -> None:
        metadata, status = pod.metadata or ObjectMeta(), pod.status or PodStatus()
        self.name, self.uid = metadata.name or "", metadata.uid or ""
        self.version = metadata.resourceVersion
        self.is_leaving = metadata.deletionTimestamp is not None
        self._claims = pod.spec is not None and bool(pod.spec.resourceClaims)
        self._text = (metadata.annotations or {}).get(names.SERVER)
        self._status, self._address = status, status.podIP or ""
        self._conditions = {one.type: one for one in status.conditions or []}
        found = (one for one in status.containerStatuses or [] if one.name == names.CONTAINER)
        self._container = next(found, None)
        self.restarts = int(self._container.restartCount or 0) if self._container else 0
        self._now = (self._container.state if self._container else None) or ContainerState()
        before = (self._container.lastState if self._container else None) or ContainerState()
        self._last = before.terminated
        self._runs = self._now.running is not None and bool(self._address)

    @property
    def is_ours(self) -> bool:
        """Whether it describes a server."""
        return self._text is not None

    @property
    def server(self) -> Server:
        """The server that it describes, at the pod's address."""
        runs = self.health is not Health.GONE and self._runs
        state = ServerState.RUNNING if runs else ServerState.EXITED
        found = labels.server_of(self._text or "", id=self.uid, state=state)
        end = None if self.end is None else in_full(self.end, found)
        return replace(found, host=self._address, end=end)

    @property
    def health(self) -> Health:
        """Whether the server has ended, is about to, or (`READY`) neither."""
        if self.end is None:
            return Health.READY
        # Its container runs on for `PRE_STOP_S`, then until Triton has drained.
        return Health.ENDING if self.is_leaving and self._runs else Health.GONE

    @property
    def is_ready(self) -> bool:
        """Whether it runs, answers its kubelet and has an address."""
        return self.end is None and bool(self._address) and self._is_true("Ready")

    @property
    def end(self) -> str | None:
        """Why the server ended or is about to; None while it runs or is on its way."""
        status = self._status
        if status.phase in ("Failed", "Succeeded"):
            why = f"{status.reason}: {status.message}" if status.reason else "its containers ended"
            container = f": {_ended(self._now.terminated)}" if self._now.terminated else ""
            return f"its pod ended ({why}){container}"
        if self.is_leaving:
            found = self._conditions["DisruptionTarget"] if self._is_true("DisruptionTarget") else None
            by = "" if found is None else f" ({found.reason}: {found.message})"
            return f"its pod ended: it is being deleted{by}"
        if self._now.terminated is not None:
            return _ended(self._now.terminated)
        return _ended(self._last) if self._now.waiting is not None and self._last is not None else None

    @property
    def last_end(self) -> str:
        """Why the run of the container before the present one ended."""
        return _ended(self._last) if self._last is not None else "its container ended"

    @property
    def obstacle(self) -> str | None:
        """Why a pod that starts will never be ready; None where it may."""
        if self.end is not None:
            return self.end
        if self.restarts > 0 and self._last is not None:
            return _ended(self._last)
        waiting = self._now.waiting
        if self._container is None or waiting is None or waiting.reason not in _HOPELESS:
            return None
        told = waiting.message or self._container.image
        return f"{_HOPELESS[waiting.reason]} ({waiting.reason}: {told})"

    @property
    def unplaced(self) -> str | None:
        """Why the scheduler places it nowhere; None for one that it has placed or not looked at."""
        placed = self._conditions.get("PodScheduled")
        if placed is None or placed.status != "False":
            return None
        return f"no node takes it: {placed.message}"

    @property
    def waits_for(self) -> str | None:
        """What a pod that is not ready waits for, as far as the cluster says it."""
        waiting = self._now.waiting
        if self.unplaced is not None or waiting is None:
            return self.unplaced
        told = f"{waiting.reason}: {waiting.message or ''}".strip(": ")
        return f"{told}; {_NO_MPS}" if self._claims and waiting.reason == _PREPARED else told

    def resize_left(self, limit: str) -> str | None:
        """Return why its container has not this CPU limit yet; None once it has."""
        container = self._container
        held = (container.resources.limits if container and container.resources else None) or {}
        if held.get("cpu") == limit:
            return None
        for name in ("PodResizePending", "PodResizeInProgress"):
            if self._is_true(name):
                found = self._conditions[name]
                return f"{found.reason or name}: {found.message or 'no reason given'}"
        return "the kubelet has not applied it"

    def _is_true(self, condition: str) -> bool:
        return condition in self._conditions and self._conditions[condition].status == "True"


def way_out(refusal: str) -> str:
    """Return what helps against a refusal of the scheduler; empty where only its own words do."""
    if "Insufficient cpu" not in refusal:
        return ""
    return (
        "; a server that replaces another one needs its share beside it until the requests have moved: free "
        "cores of the node, or plan smaller shares there first"
    )


def in_full(reason: str, server: Server) -> str:
    """Return the reason of an end with the server's own memory limit."""
    return reason.replace(_OOM, out_of_memory(server))


def _ended(state: ContainerStateTerminated) -> str:
    why = _OOM if state.reason == "OOMKilled" else f"exit code {state.exitCode}"
    return f"its container ended: {why}"


@dataclass(frozen=True, slots=True)
class _Known:
    """What was last seen of a pod."""

    restarts: int
    health: Health


class PodEnds:
    """The pods of a fleet as they were last seen, and the news of them.

    By uid: a name may be used again, and an earlier end is not its. Threads may use it side by side.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._heard: dict[str, News] = {}

    @property
    def heard(self) -> Mapping[str, News]:
        """The latest news by uid, of pods that are there or were at the last `forget`."""
        with self._lock:
            return dict(self._heard)

    def forget(self) -> None:
        """Drop the news of pods that are gone."""
        with self._lock:
            self._heard = {uid: news for uid, news in self._heard.items() if uid in self._known}

    def see_all(self, pods: Sequence[PodState]) -> None:
        """Compare all pods with what was known of them."""
        with self._lock:
            for uid in self._known.keys() - {pod.uid for pod in pods}:
                self._delete(uid, _DELETED)
        for pod in pods:
            self.see(pod, deleted=False)

    def see(self, pod: PodState, *, deleted: bool) -> None:
        """Compare one pod with what was known of it."""
        now = _Known(pod.restarts, pod.health)
        with self._lock:
            before = self._known.setdefault(pod.uid, now)
            if deleted:
                self._delete(pod.uid, pod.end or _DELETED)
                return
            self._known[pod.uid] = now
            if now.health is not before.health and now.health is not Health.READY:
                self._tell(pod.uid, pod.end or "", now.health)
            elif now.restarts > before.restarts and before.health is Health.READY:
                self._tell(pod.uid, pod.last_end)

    def _delete(self, uid: str, reason: str) -> None:
        if self._known.pop(uid).health is not Health.GONE:
            self._tell(uid, reason)

    def _tell(self, uid: str, reason: str, health: Health = Health.GONE) -> None:
        before = self._heard.get(uid)
        if before is None or before.health is not Health.GONE:  # the first end is the reason
            self._heard[uid] = News((uid,), reason, health=health, certain=True)


class PodWatcher:
    """Watches the pods of a fleet in a thread, and notes their `ends`. `api` is its own, which it closes."""

    def __init__(self, api: ClusterApi, fleet: str, ends: PodEnds) -> None:
        self._api = api
        self._labels = names.fleet_labels(fleet)
        self._ends = ends
        self._ends.forget()
        self._reported: dict[str, News] = {}
        self._loop = asyncio.new_event_loop()
        # Before this returns, so that an end right after it is noticed.
        self._version = self._list()
        self._reading = self._loop.create_task(self._read())
        self._thread = threading.Thread(target=self._run, name="pod-watcher", daemon=True)
        self._thread.start()

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        """Return the news of these servers, each once."""
        if not (heard := self._ends.heard):
            return ()
        found = []
        for server in servers:
            news = heard.get(server.id)
            if news is not None and self._reported.get(server.id) is not news:
                self._reported[server.id] = news
                reason = in_full(news.reason, server)
                found.append(news._replace(servers=(server.name,), reason=reason))
        return tuple(found)

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
            with translate_errors(self._api.server):
                await self._events(client, version)
        finally:
            await client.close()

    async def _events(self, client: lightkube.AsyncClient, version: str) -> None:
        stream = aiter(client.watch(Pod, labels=dict(self._labels), resource_version=version))
        with contextlib.suppress(TimeoutError):
            while True:
                kind, pod = await asyncio.wait_for(anext(stream), _QUIET_S)
                seen = PodState(pod)
                self._ends.see(seen, deleted=kind == "DELETED")
                self._version = seen.version or self._version

    def _list(self) -> str | None:
        """Compare all pods with what was known; return the version to watch from, None without an answer."""
        try:
            pods, version = self._api.find_with_version(Pod, self._labels)
        except EngineError:
            return None
        self._ends.see_all([PodState(pod) for pod in pods])
        return version
