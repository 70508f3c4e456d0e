"""The launcher that runs each partition's Triton in a pod of a Kubernetes cluster.

The labels are on the pods, so the API server is the only source of what runs.
"""

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
from controlplane.domain.errors import EngineError, InputError, LaunchTimeout
from controlplane.domain.fleet import Server, ServerSpec, ServerState, ShareUsage
from controlplane.ports import Capability, Watch
from launchers.gpu import gpus, mps
from launchers.kubernetes import ends, names, nodes, repository
from launchers.kubernetes.api import ClusterApi, ClusterPlace, Conflict
from launchers.kubernetes.capabilities import capabilities
from launchers.kubernetes.devices import NodeDevice
from launchers.kubernetes.events import PodEnds
from launchers.kubernetes.objects import companions
from launchers.kubernetes.objects.pod import PORTS, PRE_STOP_S, cpu_quantity, cpu_resources, pod
from launchers.kubernetes.options import PodOptions
from launchers.triton import labels, program, readiness, server_log
from launchers.triton.starting import Starting
from launchers.watch import LauncherWatch

QUOTA = "cpu-limit"
"""The kubelet turns a limit into a quota of the container's cgroup."""
_POLL_S = 0.25
_AT_ONCE_S = 1
"""The shortest grace: with 0 the API server forgets a pod while its container still runs."""
_UNPLACED_S = 10.0
"""How long the scheduler may refuse a pod, which can only go to its one node, until the start fails."""
_KUBELET_S = 15.0
"""How long a kubelet may take to end a pod beyond its grace; a node that is away never does."""


class KubernetesLauncher:
    """`controlplane.ports.Launcher` with pods. Logs of failed starts go to `state`/<fleet>/logs."""

    name = "kubernetes"

    def __init__(self, state: Path, place: ClusterPlace, options: PodOptions | None = None) -> None:
        self._state = state
        self._place = place
        self._options = options or PodOptions()
        self._starting = Starting()
        self._lock = threading.Lock()
        self._opened: ClusterApi | None = None

    def enforcement(self) -> str | None:
        """Return the kubelet's CPU limit; on a GPU it is MPS, per server."""
        return QUOTA

    def capabilities(self) -> tuple[Capability, ...]:
        """Return what the cluster has of what a fleet needs."""
        return capabilities(self._api, self._options)

    def command(self, spec: ServerSpec) -> str:
        """Return the pod of a start as YAML."""
        made = pod(
            self._server(spec, program.KEY_PLACEHOLDER if spec.reloads else None),
            repository.read(spec.repository),
            nodes.placement(self._api(), spec, make=False),
            self._options,
        )
        return str(yaml.safe_dump(made.to_dict(), sort_keys=False, width=110))

    def inventory(self) -> tuple[HeldDevice, ...]:
        """Return the cores and GPUs of all nodes that take pods, node by node."""
        return nodes.inventory(self._api())

    def start(self, spec: ServerSpec, *, deadline_s: float) -> Server:
        """Create one pod and wait until its Triton is ready; where it already runs, wait for that one."""
        deadline = time.monotonic() + deadline_s
        with self._starting.one_at_a_time(spec.name):
            while True:
                adopted = self._adopt(spec, deadline)
                if adopted is not None:
                    return adopted
                made = self._create(spec)
                if made is not None:
                    return self._started(spec, made, deadline)

    def servers(self, fleet: str) -> tuple[Server, ...]:
        """Return the fleet's pods; one that does not run, or is being deleted, counts as exited."""
        found = (ends.server_of(one) for one in self._pods(fleet))
        return tuple(sorted(found, key=lambda server: server.name))

    def stop(self, server: Server, *, drain_s: float) -> None:
        """Delete the pod, let requests finish for up to `drain_s`, and remove what belonged to it."""
        self._remove(server.spec, server.id, drain_s)

    def resize(self, server: Server, percent: float) -> None:
        """Change the limit of the running pod in place; the kubelet applies it within a second or two.

        A pod that is deleted meanwhile takes its limit with it: no kubelet resizes a pod that it ends.
        """
        if NodeDevice.parse(server.spec.device).gpu:
            raise InputError(gpus.FIXED, field="percent")
        self._running(server)
        share = cpu_resources(replace(server.spec, percent=percent, memory_mb=None, memory_limit_mb=None))
        container = {"name": names.CONTAINER, "resources": share.to_dict()}
        self._api().patch(Pod.Resize, names.server_object(server.spec), {"spec": {"containers": [container]}})
        deadline = time.monotonic() + _KUBELET_S
        while (refusal := self._resize_left(server, cpu_quantity(percent))) is not None:
            if time.monotonic() > deadline:
                raise EngineError(f"{server.name} keeps its share: {refusal}")
            time.sleep(_POLL_S)

    def watch(self, fleet: str) -> Watch:
        """Watch the fleet's pods, from the last version seen, and wait for an API server that is away."""
        return LauncherWatch((PodEnds(ClusterApi(self._place, patience_s=0.0), fleet),), mps.MpsDaemons())

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
        starting = self._starting.names()
        left = []
        for one in self._pods(fleet):
            server = ends.server_of(one)
            if server.state is ServerState.EXITED and server.name not in starting and ends.end(one):
                self._remove(server.spec, server.id, 0.0)
                removed.append(f"pod {server.name}")
            else:
                left.append(server)
        alive = {server.name for server in left} | starting
        for files in self._api().find(ConfigMap, names.fleet_labels(fleet)):
            if (name := names.name_of(files)) not in alive:
                self._api().delete(ConfigMap, names.object_of(files))
                removed.append(f"files of {name}")
        return tuple(removed)

    def _api(self) -> ClusterApi:
        with self._lock:
            if self._opened is None:
                self._opened = ClusterApi(self._place)
            return self._opened

    def _pods(self, fleet: str) -> list[Pod]:
        found = self._api().find(Pod, names.fleet_labels(fleet))
        return [one for one in found if ends.is_ours(one)]

    def _pod(self, spec: ServerSpec) -> Pod | None:
        """Return the pod of that name. Raises EngineError where it is none of ours."""
        one = self._api().get(Pod, names.server_object(spec))
        if one is not None and not (ends.is_ours(one) and ends.server_of(one).name == spec.name):
            raise EngineError(
                f"a pod that is none of ours is called {names.server_object(spec)}: delete or rename it"
            )
        return one

    def _resize_left(self, server: Server, limit: str) -> str | None:
        one = self._pod(server.spec)
        if one is None or ends.uid(one) != server.id or ends.is_leaving(one):
            return None
        return ends.resize_left(one, limit)

    def _running(self, server: Server) -> Pod:
        one = self._pod(server.spec)
        if one is None or ends.uid(one) != server.id:
            raise EngineError(f"{server.name} does not run")
        return one

    def _server(self, spec: ServerSpec, reload_key: str | None) -> Server:
        return Server(
            id="",
            spec=spec,
            state=ServerState.RUNNING,
            host="",
            http_port=PORTS.http,
            grpc_port=PORTS.grpc,
            metrics_port=PORTS.metrics,
            enforced_by=mps.MECHANISM if NodeDevice.parse(spec.device).gpu else QUOTA,
            reload_key=reload_key,
        )

    def _adopt(self, spec: ServerSpec, deadline: float) -> Server | None:
        """Return the running server once it is ready; remove one that ended, and return None."""
        one = self._pod(spec)
        if one is None:
            return None
        if ends.is_leaving(one) and self._is_gone(spec, ends.uid(one), deadline):
            return None
        running = ends.server_of(one)
        while ends.end(one) is None:
            for field, (wanted, has) in labels.spec_difference(spec, running.spec).items():
                problem = f"{spec.name} already runs with {has!r}, not {wanted!r}: stop it first"
                raise InputError(problem, field=field)
            if _answers(one):
                return ends.server_of(one)
            if time.monotonic() > deadline:
                self._remove(spec, running.id, 0.0)
                raise LaunchTimeout(f"{spec.name} ran already and was not ready in time: it is removed")
            time.sleep(_POLL_S)
            now = self._pod(spec)
            if now is None or ends.uid(now) != running.id:
                return None
            one = now
        self._remove(spec, running.id, 0.0)
        return None

    def _create(self, spec: ServerSpec) -> Pod | None:
        """Create a server's objects; None where another program created its pod meanwhile."""
        place = nodes.placement(self._api(), spec, make=True)
        files = repository.read(spec.repository)
        wanted = pod(self._server(spec, program.new_reload_key(spec)), files, place, self._options)
        with contextlib.suppress(Conflict):  # the name stands for the content, by the revision in it
            self._api().create(companions.config_map(spec, files))
        try:
            made = self._api().create(wanted)
        except Conflict:
            return None
        except BaseException:
            self._remove_companions(spec)
            raise
        return made

    def _started(self, spec: ServerSpec, made: Pod, deadline: float) -> Server:
        """Return the server of a new pod once it is ready; remove it where it fails."""
        refused_s = time.monotonic()
        try:
            self._api().apply(companions.disruption_budget(spec))
            while True:
                one = self._pod(spec)
                if one is None or ends.uid(one) != ends.uid(made):
                    raise EngineError(f"{spec.name}: another program deleted its pod while it started")
                if _answers(one):
                    return ends.server_of(one)
                why = ends.obstacle(one)
                if why is not None and not server_log.by_chance(self._log(one)):
                    raise EngineError(self._failure(spec, one, f"ended before it was ready ({why})", why))
                if (refusal := ends.unplaced(one)) is None:
                    refused_s = time.monotonic()
                elif time.monotonic() - refused_s > _UNPLACED_S:
                    raise EngineError(f"{spec.name}: {refusal}{ends.way_out(refusal)}")
                if time.monotonic() > deadline:
                    waits = ends.waits_for(one) or _silent(one) or "its models are loading"
                    raise LaunchTimeout(self._failure(spec, one, "was not ready in time", waits))
                time.sleep(_POLL_S)
        except BaseException:
            self._remove(spec, ends.uid(made), 0.0)
            raise

    def _log(self, one: Pod) -> str:
        return self._api().log(names.object_of(one), previous=ends.restarts(one) > 0)

    def _failure(self, spec: ServerSpec, one: Pod, what: str, why: str) -> str:
        """Return the message, and keep the log, which would be removed with the pod."""
        log = self._log(one)
        if not log:
            return f"{spec.name} {what}: {why}" if why not in what else f"{spec.name} {what}"
        kept = self._state / spec.labels.fleet / "logs" / f"{labels.folder_name(spec.name)}.log"
        with contextlib.suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(log)
        return server_log.failure(spec.name, what, log, kept)

    def _remove(self, spec: ServerSpec, uid: str, drain_s: float) -> None:
        """Delete the pod with this uid, and what belonged to it. Raises EngineError where it stays."""
        name = names.server_object(spec)
        grace_s = PRE_STOP_S + round(drain_s) if drain_s > 0 else _AT_ONCE_S
        self._api().delete(Pod, name, uid=uid, grace_s=grace_s)
        if not self._is_gone(spec, uid, time.monotonic() + grace_s + _KUBELET_S):
            # Its node is away, and no kubelet will confirm the end.
            self._api().delete(Pod, name, uid=uid, grace_s=0)
            if not self._is_gone(spec, uid, time.monotonic() + _KUBELET_S):
                raise EngineError(f"pod {name} does not end: kubectl describe pod {name} shows why")
        self._remove_companions(spec)

    def _is_gone(self, spec: ServerSpec, uid: str, deadline: float) -> bool:
        """Wait until the pod with this uid is gone; False where it is still there at the deadline."""
        while True:
            one = self._api().get(Pod, names.server_object(spec))
            if one is None or ends.uid(one) != uid:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)

    def _remove_companions(self, spec: ServerSpec) -> None:
        """Remove a server's files unless its pod is there, and a partition's budget with its last pod."""
        pods = self._api().find(Pod, names.partition_labels(spec))
        if names.server_object(spec) not in {names.object_of(one) for one in pods}:
            self._api().delete(ConfigMap, names.server_object(spec))
        if not pods:
            self._api().delete(PodDisruptionBudget, names.partition_object(spec))


def _answers(one: Pod) -> bool:
    """Return whether a pod's server is ready, by its status and by its own answer.

    The status alone is late: a container that was killed counts as ready for a second or two.
    """
    return ends.is_ready(one) and readiness.is_ready(ends.server_of(one))


def _silent(one: Pod) -> str | None:
    """Return why a pod that the kubelet calls ready is of no use here; None for one that is not ready."""
    if not ends.is_ready(one):
        return None
    return (
        f"its kubelet reaches it at {ends.server_of(one).host}, this host does not: route the pods' network"
    )
