"""Runs each partition's Triton in a container of the local Docker engine, which carries its labels."""

from __future__ import annotations

import contextlib
import os
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import docker.errors
import psutil
import requests.exceptions

from controlplane.domain import triton_releases
from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.fleet import OWN_FOLDER, QuotaUse, Server, ServerSpec, ServerState, ShareUsage
from controlplane.domain.observation import out_of_memory
from controlplane.ports import Capability, Watch
from launchers.cpu_quota.counters import QuotaCounters, memory_kills
from launchers.cpu_quota.mechanism import Weight, bandwidth
from launchers.docker import containers, engine
from launchers.docker.containers import ContainerOptions
from launchers.docker.engine import ANSWER_S, ContainerWatcher, Say, have_image
from launchers.gpu import checks, gpus, mps
from launchers.host import process_table, server_sockets
from launchers.host.process_table import ServerProcess
from launchers.host.process_watcher import ProcessWatcher
from launchers.host_lifecycle import HostLifecycle, HostPlace
from launchers.lifecycle import StartState
from launchers.triton import batches, labels, readiness
from launchers.triton.readiness import await_read

QUOTA = "docker-cpu-quota"
_ROOTLESS = (
    "the engine runs rootless: the user in its containers could not enter the folder of their sockets; let "
    "$DOCKER_HOST name an engine that runs as root, or choose the launcher process"
)
_LIST_S = 10
_STATES = {"running": ServerState.RUNNING, "paused": ServerState.PAUSED}


class DockerLauncher(HostLifecycle):
    """`controlplane.ports.Launcher` with containers. `say` receives the progress of a pull."""

    name = "docker"

    def __init__(
        self,
        state: Path,
        options: ContainerOptions | None = None,
        *,
        address: str | None = None,
        say: Say = lambda _: None,
    ) -> None:
        super().__init__(state)
        self._options = options or ContainerOptions()
        self._given_address = address
        self._say = say
        self._engine_told: dict[str, Any] | None = None
        self._watched: dict[str, tuple[ServerProcess, ...]] = {}
        self._counters = QuotaCounters()
        self._pids: dict[str, int] = {}

    def enforcement(self) -> str | None:
        """Return the CPU quota of the engine's kernel; on a GPU it is MPS, per server."""
        return QUOTA if self._told().get("CpuCfsQuota") else None

    def capabilities(self) -> tuple[Capability, ...]:
        """Return the engine, its quota, the image, and whether a container can get a GPU."""
        try:
            with self._connected() as client:
                info, version = client.info(), client.version()
                image = self._image_found(client)
        except EngineError as error:
            return (Capability("docker", False, "no engine", str(error)),)
        if _is_rootless(info):
            return (Capability("docker", False, "rootless engine", _ROOTLESS),)
        quota = bool(info.get("CpuCfsQuota"))
        by_cdi = (str(device.get("ID")) for device in info.get("DiscoveredDevices") or ())
        toolkit = "nvidia" in (info.get("Runtimes") or {}) or any("nvidia.com/gpu" in one for one in by_cdi)
        return (
            Capability("docker", True, f"engine {version['Version']} at {self._address()}"),
            Capability("docker cpu quota", quota, "cgroups " + str(info.get("CgroupVersion", "1"))),
            image,
            Capability(
                "docker gpus",
                toolkit,
                "GPUs can be given to containers" if toolkit else "no NVIDIA runtime, no GPUs by CDI",
                None if toolkit else "install the NVIDIA container toolkit and restart the engine",
            ),
            batches.capability(),
            *checks.capabilities(self._mps),
        )

    def servers(self, fleet: str) -> tuple[Server, ...]:
        """Return the fleet's containers."""
        with self._connected(_LIST_S) as client:
            ours = self._of_fleet(client, fleet)
        found = sorted(map(_server_of, ours), key=lambda s: s.name)
        # Read anew: the engine restarts a container under the same id.
        self._pids |= (pids := {c.id: int(c.attrs["State"].get("Pid", 0)) for c in ours})
        running = {pids[s.id]: s.name for s in found if s.state is not ServerState.EXITED}
        self._watched[fleet] = process_table.server_processes(running)
        return self._with_shares(found)

    def servers_of_host(self) -> tuple[Server, ...]:
        """Return the servers in running containers, of all fleets."""
        with self._connected() as client:
            every = client.containers.list(filters={"label": containers.SERVER_LABEL}, ignore_removed=True)
            return tuple(map(_server_of, every))

    def stop(self, server: Server, *, drain_s: float) -> None:
        """Have Triton finish its requests, for up to `drain_s`, then kill and remove the container."""
        with self._connected() as client:
            one = self._ours(client, server.name)
            if one is not None and one.id == server.id:
                self._end(one, server, drain_s)
            if self._ours(client, server.name) is None:
                self._clean(server.spec)

    def _end(self, one: Any, server: Server, drain_s: float) -> None:
        deadline = time.monotonic() + drain_s
        with contextlib.suppress(docker.errors.NotFound):
            if one.status == "paused":
                one.unpause()
                if drain_s > 0:
                    await_read(server, drain_s / 4)
        # It may have ended by itself. The SDK has two errors for a wait that takes too long.
        late = (requests.exceptions.Timeout, requests.exceptions.ConnectionError)
        with contextlib.suppress(docker.errors.APIError, *late):
            if drain_s > 0:
                one.kill(process_table.END)
                one.wait(timeout=max(deadline - time.monotonic(), 0.1))
        self._release(server)
        _remove_container(one)

    def usage(self, server: Server) -> ShareUsage:
        """Return the engine's counters of the container."""
        with self._connected() as client:
            one = self._ours(client, server.name)
            if one is None:
                return ShareUsage(None, None, None)
            told = client.api.stats(one.id, stream=False, one_shot=True)
        cpu = told.get("cpu_stats", {})
        periods = cpu.get("throttling_data", {})
        memory = told.get("memory_stats", {}).get("usage")
        usage = ShareUsage(
            periods.get("periods"),
            periods.get("throttled_periods"),
            cpu.get("cpu_usage", {}).get("total_usage", 0) / 1e9,
            memory / 2**20 if memory else None,
        )
        return self._with_gpu_memory(usage, server) if self._on_gpu(server.spec) else usage

    def quota_use(self, server: Server) -> QuotaUse | None:
        """Return the counters of the container's group; None where the engine is on another host."""
        if self._on_gpu(server.spec):
            return None
        pid = self._pid(server)
        return None if pid is None else self._counters.read(pid)

    def _pid(self, server: Server) -> int | None:
        """Return the pid of the container's Triton on this host; None where the container is gone."""
        if server.id not in self._pids:
            with self._connected() as client:
                one = self._ours(client, server.name)
            if one is None or one.id != server.id:
                return None
            self._pids[server.id] = int(one.attrs["State"].get("Pid", 0))
        return self._pids[server.id]

    def _processes(self, server: Server) -> tuple[int, ...]:
        pid = self._pid(server)
        if not pid:
            return ()
        try:
            return (pid, *(child.pid for child in psutil.Process(pid).children(recursive=True)))
        except psutil.NoSuchProcess:
            return ()

    def sweep(self, fleet: str) -> tuple[str, ...]:
        """Remove the fleet's containers that do not run, and shared memory without a server."""
        removed: list[str] = []
        begun, starting = self._begun(fleet), self._starting()
        with self._connected() as client:
            alive: set[str] = {labels.digest(name) for name in starting}
            for one in self._of_fleet(client, fleet):
                name = one.labels[containers.NAME_LABEL]
                if one.status in ("created", "exited", "dead") and name not in starting:
                    _remove_container(one)
                    removed.append(f"container {name}")
                else:
                    alive.add(labels.digest(name))
        return (*removed, *self._swept(fleet, begun, alive))

    def _find(self, spec: ServerSpec) -> Server | None:
        with self._connected() as client:
            one = self._ours(client, spec.name)
        found = None if one is None else _server_of(one)
        return found if found is not None and found.state is ServerState.RUNNING else None

    def _clear(self, spec: ServerSpec, deadline: float) -> None:
        with self._connected() as client:
            one = self._ours(client, spec.name)
            if one is not None:
                self._release(_server_of(one))
                _remove_container(one)
        self._clean(spec)

    def _host(self, spec: ServerSpec) -> str:
        return f"{super()._host(spec)}{OWN_FOLDER}"

    def _user(self, client: mps.MpsClient) -> int:
        return client.uid

    def _place(self, spec: ServerSpec, *, start: bool) -> HostPlace:
        """Return the place. Raises InputError also for a GPU on which the image does not run.

        Raises EngineError for a rootless engine.
        """
        if _is_rootless(self._told()):
            raise EngineError(_ROOTLESS)
        if self._on_gpu(spec):
            gpu = gpus.whole(spec.device)
            problem = triton_releases.unfit(self._options.image, gpu.capability, gpu.driver)
            if problem is not None:
                raise InputError(f"{spec.device}: {problem}", field="device")
        return super()._place(spec, start=start)

    def _create(self, server: Server, place: HostPlace) -> Server:
        user = uid, _ = containers.user_of(place)
        with self._connected() as client:
            have_image(client, self._options, self._say)
            place = self._with_files(server.spec, place, shared=uid != os.getuid())
            if (sockets := server_sockets.folder_of(server)) is not None:
                server_sockets.make(sockets, *user)
            one = client.containers.create(**self._arguments(server, place))
            if not place.gpu:
                _update(one, cpu_shares=Weight.START.shares)
            one.start()
            return replace(server, id=one.id)

    def _start_state(self, server: Server) -> StartState:
        with self._connected() as client:
            one = client.containers.get(server.id)
        if one.status != "running":
            short = one.attrs["State"].get("OOMKilled")
            return StartState(ended=out_of_memory(server) if short else "")
        if not readiness.is_ready(server):
            return StartState()
        return StartState(self._find(server.spec) or server)

    def _weigh(self, server: Server, weight: Weight) -> None:
        if not self._on_gpu(server.spec):
            self._change(server, cpu_shares=weight.shares)

    def _confirm(self, server: Server) -> None:
        """Have the engine start it again, too, where it ends."""
        super()._confirm(server)
        self._change(server, restart_policy=containers.RESTART)

    def _change(self, server: Server, **changed: Any) -> None:
        with self._connected() as client:
            _update(client.containers.get(server.id), **changed)

    def _log(self, server: Server) -> str:
        with self._connected() as client:
            return str(client.containers.get(server.id).logs().decode(errors="replace"))

    def _shown(self, server: Server, place: HostPlace) -> str:
        return containers.run_line(self._arguments(server, place))

    def _change_share(self, server: Server, percent: float) -> None:
        """Update the quota of the running container, in about 30 ms; requests in flight continue."""
        quota, period = bandwidth(percent)
        with self._connected() as client:
            one = self._ours(client, server.name)
            if one is None:
                raise EngineError(f"{server.name} does not run")
            try:
                one.update(cpu_quota=quota, cpu_period=period)
            except docker.errors.NotFound as error:
                raise EngineError("this engine cannot change a running container (Podman 4)") from error

    def _watchers(self, fleet: str) -> tuple[Watch, ...]:
        """Watch the engine's events, and its processes by pidfd once `servers` has listed them."""
        processes = ProcessWatcher(lambda: self._watched.get(fleet, ()), memory_kills=memory_kills)
        return ContainerWatcher(self._address(), fleet), processes

    def _arguments(self, server: Server, place: HostPlace) -> dict[str, Any]:
        # Below the engine's own group, all containers together weigh as much as one other program.
        parent = "/" if self._told().get("CgroupDriver") == "cgroupfs" else None
        return containers.arguments(server, self._options, place, parent)

    def _address(self) -> str:
        return engine.address(self._given_address)

    def _connected(self, answer_s: float = ANSWER_S) -> AbstractContextManager[docker.DockerClient]:
        return engine.engine(self._address(), answer_s)

    def _told(self) -> dict[str, Any]:
        """Return the engine's description of itself; empty while it does not answer."""
        if self._engine_told is None:
            with contextlib.suppress(EngineError), self._connected() as client:
                self._engine_told = client.info()
        return self._engine_told or {}

    def _image_found(self, client: docker.DockerClient) -> Capability:
        image = self._options.image
        for gpu in gpus.inventory():
            problem = triton_releases.unfit(image, gpu.capability, gpu.driver)
            if problem is not None:
                return Capability("triton image", False, f"gpu {gpu.index}: {problem}")
        try:
            client.images.get(image)
        except docker.errors.ImageNotFound:
            return Capability("triton image", False, f"{image} is not here yet", f"docker pull {image}")
        return Capability("triton image", True, image)

    def _of_fleet(self, client: docker.DockerClient, fleet: str) -> list[Any]:
        wanted = f"{containers.FLEET_LABEL}={fleet}"
        return list(client.containers.list(all=True, filters={"label": wanted}, ignore_removed=True))

    def _ours(self, client: docker.DockerClient, name: str) -> Any | None:
        """Return our container of that name. Raises EngineError where another program's container has it."""
        try:
            one = client.containers.get(name)
        except docker.errors.NotFound:
            return None
        if one.labels.get(containers.NAME_LABEL) != name:
            raise EngineError(
                f"a container that is none of ours is called {name}: docker rename or docker rm it"
            )
        return one


def _is_rootless(info: dict[str, Any]) -> bool:
    return "name=rootless" in (info.get("SecurityOptions") or ())


def _server_of(one: Any) -> Server:
    state = _STATES.get(one.status, ServerState.EXITED)
    server = labels.server_of(one.labels[containers.SERVER_LABEL], id=one.id, state=state)
    short = state is ServerState.EXITED and one.attrs["State"].get("OOMKilled")
    return replace(server, end=out_of_memory(server)) if short else server


def _update(one: Any, **changed: Any) -> None:
    """Change a container, but not in Podman 4: there a start has its full weight, and no restart policy.

    One that has ended a moment ago, which the engine may not have noticed, is left to whoever looks next.
    """
    try:
        one.update(**changed)
    except docker.errors.NotFound:
        pass
    except docker.errors.APIError as error:
        if "not running" not in str(error):
            raise


def _remove_container(one: Any) -> None:
    with contextlib.suppress(docker.errors.NotFound):
        try:
            one.remove(force=True, v=True)
        except docker.errors.APIError as error:
            if "already in progress" not in str(error):
                raise
