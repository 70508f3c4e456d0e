"""Runs each partition's Triton in a pod of a Kubernetes cluster, with its labels on the pod."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from pathlib import Path

import yaml
from lightkube.resources.core_v1 import ConfigMap, Pod
from lightkube.resources.policy_v1 import PodDisruptionBudget

from controlplane.domain.device import DeviceReading, HeldDevice
from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Cluster, Server, ServerSpec, ServerState, ShareUsage
from controlplane.ports import Capability
from launchers.kubernetes import devices, files, names
from launchers.kubernetes.api import ClusterApi, Conflict
from launchers.kubernetes.capabilities import capabilities
from launchers.kubernetes.devices import NodeDevice
from launchers.kubernetes.options import PodOptions
from launchers.kubernetes.pod import PRE_STOP_S, PodPlace, cpu_quantity, cpu_resources, pod
from launchers.kubernetes.pods import PodEnds, PodState, PodWatcher, way_out
from launchers.lifecycle import Lifecycle, StartState
from launchers.triton import readiness

QUOTA = "cpu-limit"
"""The kubelet turns a limit into a quota of the container's cgroup."""
_AT_ONCE_S = 1
"""The shortest grace: with 0 the API server forgets a pod while its container still runs."""
_UNPLACED_S = 10.0
"""How long the scheduler may refuse a pod, which can only go to its one node, until the start fails."""
_KUBELET_S = 15.0
"""How long a kubelet may take to end a pod beyond its grace; a node that is away never does."""


class KubernetesLauncher(Lifecycle[PodPlace]):
    """`controlplane.ports.Launcher` with pods: a server's id is its pod's uid."""

    name = "kubernetes"
    _poll_s = 0.25

    def __init__(self, state: Path, cluster: Cluster, options: PodOptions | None = None) -> None:
        super().__init__(state)
        self._cluster = cluster
        self._options = options or PodOptions()
        self._lock = threading.Lock()
        self._opened: ClusterApi | None = None
        self._refused_s: dict[str, float] = {}
        """Since when the scheduler refuses a pod, by its uid."""
        self._ends: dict[str, PodEnds] = {}
        """By fleet."""

    def enforcement(self) -> str | None:
        """Return the kubelet's CPU limit; on a GPU it is MPS, per server."""
        return QUOTA

    def capabilities(self) -> tuple[Capability, ...]:
        """Return what the cluster has of what a fleet needs."""
        return capabilities(self._api, self._options)

    def inventory(self) -> tuple[HeldDevice, ...]:
        """Return the cores and GPUs of all nodes that take pods, node by node."""
        return devices.inventory(self._api())

    def servers(self, fleet: str) -> tuple[Server, ...]:
        """Return the fleet's pods; one that does not run, or is being deleted, counts as exited."""
        return tuple(sorted(map(self._as_seen, self._pods(fleet)), key=lambda server: server.name))

    def stop(self, server: Server, *, drain_s: float) -> None:
        """Delete the pod, let requests finish for up to `drain_s`, and remove what belonged to it."""
        self._remove(server.spec, server.id, drain_s)

    def reading(self, device: str) -> DeviceReading:
        """Return nothing: no NVML reaches into another host."""
        return DeviceReading()

    def usage(self, server: Server) -> ShareUsage:
        """Return nothing: the kubelet counts, for programs that may read all pods of its node."""
        return ShareUsage(None, None, None)

    def quota_use(self, server: Server) -> None:
        """Return nothing, as `usage`."""
        return None

    def sweep(self, fleet: str) -> tuple[str, ...]:
        """Remove the fleet's pods that ended, and files and budgets whose servers are gone."""
        removed: list[str] = []
        starting = self._starting()
        alive = {*starting}
        for pod_ in self._pods(fleet):
            server = pod_.server
            if server.state is ServerState.EXITED and server.name not in starting and pod_.end:
                self._remove(server.spec, server.id, 0.0)
                removed.append(f"pod {server.name}")
            else:
                alive.add(server.name)
        for one in self._api().find(ConfigMap, names.fleet_labels(fleet)):
            if (name := names.name_of(one)) not in alive:
                self._api().delete(ConfigMap, names.object_of(one))
                removed.append(f"files of {name}")
        return tuple(removed)

    def _on_gpu(self, spec: ServerSpec) -> bool:
        return NodeDevice.parse(spec.device).gpu

    def _find(self, spec: ServerSpec) -> Server | None:
        one = self._pod(spec)
        if one is None or one.end is not None:
            return None
        return one.server if one.is_ready else replace(one.server, host="")

    def _clear(self, spec: ServerSpec, deadline: float) -> None:
        one = self._pod(spec)
        if one is None or one.end is None:
            return
        if not (one.is_leaving and self._is_gone(spec, one.uid, deadline)):
            self._remove(spec, one.uid, 0.0)

    def _place(self, spec: ServerSpec, *, start: bool) -> PodPlace:
        return devices.placement(self._api(), spec, make=start)

    def _create(self, server: Server, place: PodPlace) -> Server | None:
        """Create a server's objects; None where another program created its pod meanwhile."""
        spec = server.spec
        rendered = files.read(spec.repository)
        wanted = pod(server, rendered, place, self._options)
        with contextlib.suppress(Conflict):  # the name stands for the content, by the revision in it
            self._api().create(files.config_map(spec, rendered))
        self._api().apply(files.disruption_budget(spec))
        try:
            return replace(server, id=PodState(self._api().create(wanted)).uid)
        except Conflict:
            return None

    def _start_state(self, server: Server) -> StartState:
        one, now_s = self._pod(server.spec), time.monotonic()
        if one is None or one.uid != server.id:
            raise EngineError(f"{server.name}: another program deleted its pod while it started")
        # The status alone is late: a container that was killed counts as ready for a second or two.
        found = one.server
        if one.is_ready and readiness.is_ready(found):
            return StartState(found)
        refusal = one.unplaced
        if refusal is None:
            self._refused_s.pop(server.id, None)
        elif now_s - self._refused_s.setdefault(server.id, now_s) > _UNPLACED_S:
            raise EngineError(f"{server.name}: {refusal}{way_out(refusal)}")
        waits_for = "its models are loading"
        if one.is_ready:
            waits_for = f"its kubelet reaches it at {found.host}, this host does not: route the pods' network"
        waits_for = self._unshared(one) or one.waits_for or waits_for
        return StartState(ended=one.obstacle, waits_for=waits_for)

    def _log(self, server: Server) -> str:
        one = self._pod(server.spec)
        return "" if one is None else self._api().log(one.name, previous=one.restarts > 0)

    def _discard(self, server: Server) -> None:
        self._refused_s.pop(server.id, None)
        if server.id:
            self._remove(server.spec, server.id, 0.0)
        else:
            self._remove_companions(server.spec)

    def _shown(self, server: Server, place: PodPlace) -> str:
        made = pod(server, files.read(server.spec.repository), place, self._options)
        return str(yaml.safe_dump(made.to_dict(), sort_keys=False, width=110))

    def _change_share(self, server: Server, percent: float) -> None:
        """Change the limit of the running pod in place; the kubelet applies it within a second or two.

        A pod that is deleted meanwhile takes its limit with it: no kubelet resizes a pod that it ends.
        """
        one = self._pod(server.spec)
        if one is None or one.uid != server.id:
            raise EngineError(f"{server.name} does not run")
        share = cpu_resources(replace(server.spec, percent=percent, memory_mb=None, memory_limit_mb=None))
        container = {"name": names.CONTAINER, "resources": share.to_dict()}
        self._api().patch(Pod.Resize, names.server_object(server.spec), {"spec": {"containers": [container]}})
        deadline = time.monotonic() + _KUBELET_S
        while (one := self._pod(server.spec)) and one.uid == server.id and not one.is_leaving:
            if (refusal := one.resize_left(cpu_quantity(percent))) is None:
                return
            if time.monotonic() > deadline:
                raise EngineError(f"{server.name} keeps its share: {refusal}")
            time.sleep(self._poll_s)

    def _watchers(self, fleet: str) -> tuple[PodWatcher]:
        """Watch the fleet's pods, from the last version seen, and wait for an API server that is away."""
        ends = self._ends.setdefault(fleet, PodEnds())
        return (PodWatcher(ClusterApi(self._cluster, patience_s=0.0), fleet, ends),)

    def _api(self) -> ClusterApi:
        with self._lock:
            if self._opened is None:
                self._opened = ClusterApi(self._cluster)
            return self._opened

    def _pods(self, fleet: str) -> list[PodState]:
        found = map(PodState, self._api().find(Pod, names.fleet_labels(fleet)))
        return [one for one in found if one.is_ours]

    def _pod(self, spec: ServerSpec) -> PodState | None:
        """Return the pod of that name. Raises EngineError where it is none of ours."""
        found = self._api().get(Pod, names.server_object(spec))
        one = None if found is None else PodState(found)
        if one is not None and not (one.is_ours and one.server.name == spec.name):
            raise EngineError(f"a pod that is none of ours is called {one.name}: delete or rename it")
        return one

    def _as_seen(self, one: PodState) -> Server:
        """Return a listed server; one on a GPU whose pod is not ready has not its share."""
        server = one.server
        if server.state is not ServerState.RUNNING or not self._on_gpu(server.spec) or one.is_ready:
            return server
        return replace(server, enforced_by=None, end=server.end or self._unshared(one))

    def _unshared(self, one: PodState) -> str | None:
        """Return why a server that answers has not its share of a GPU; None where it has, or loads."""
        server = one.server
        if not self._on_gpu(server.spec) or one.is_ready or not server.host or not readiness.is_ready(server):
            return None
        return (
            "without its share: the node's MPS daemon lists no client of its pod (kubectl describe pod "
            f"{one.name} shows its probe's answer)"
        )

    def _remove(self, spec: ServerSpec, uid: str, drain_s: float) -> None:
        """Delete the pod with this uid, and what belonged to it. Raises EngineError where it stays."""
        name = names.server_object(spec)
        # Then at once: where its node is away, no kubelet will confirm the end.
        for grace_s in (PRE_STOP_S + round(drain_s) if drain_s > 0 else _AT_ONCE_S, 0):
            self._api().delete(Pod, name, uid=uid, grace_s=grace_s)
            if self._is_gone(spec, uid, time.monotonic() + grace_s + _KUBELET_S):
                return self._remove_companions(spec)
        raise EngineError(f"pod {name} does not end: kubectl describe pod {name} shows why")

    def _is_gone(self, spec: ServerSpec, uid: str, deadline: float) -> bool:
        """Wait until the pod with this uid is gone; False where it is still there at the deadline."""
        while True:
            one = self._api().get(Pod, names.server_object(spec))
            if one is None or PodState(one).uid != uid:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(self._poll_s)

    def _remove_companions(self, spec: ServerSpec) -> None:
        """Remove a server's files unless its pod is there, and a partition's budget with its last pod."""
        pods = self._api().find(Pod, names.partition_labels(spec))
        if names.server_object(spec) not in {names.object_of(one) for one in pods}:
            self._api().delete(ConfigMap, names.server_object(spec))
        if not pods:
            self._api().delete(PodDisruptionBudget, names.partition_object(spec))
