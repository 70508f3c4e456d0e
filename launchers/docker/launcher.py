"""The launcher that runs each partition's Triton in a container of the local Docker engine.

The labels are on the containers, so the engine is the only source of what runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import docker.errors
import psutil
import requests.exceptions

from controlplane.domain.device import DeviceReading
from controlplane.domain.errors import EngineError, InputError, LaunchTimeout
from controlplane.domain.fleet import QuotaUse, Server, ServerSpec, ServerState, ShareUsage
from controlplane.domain.observation import out_of_memory
from controlplane.ports import Capability, Watch
from launchers.cpu_quota.cgroup_files import memory_kills
from launchers.cpu_quota.counters import QuotaCounters
from launchers.cpu_quota.mechanism import bandwidth
from launchers.docker import containers, engine
from launchers.docker.containers import Container, ContainerOptions
from launchers.docker.engine import ANSWER_S, Say
from launchers.docker.events import EngineEvents
from launchers.gpu import gpus, mps, shares
from launchers.gpu.gpus import is_gpu
from launchers.gpu.mps import MpsClient, MpsDaemons
from launchers.host import process_table, shared_memory
from launchers.host.cores import core_of
from launchers.host.process_ends import ListedEnds
from launchers.host.process_table import Listed
from launchers.host.unread import await_read
from launchers.triton import labels, program, readiness, server_log
from launchers.triton.program import ServerPorts
from launchers.triton.starting import ATTEMPTS, BAD_LUCK, Starting
from launchers.watch import LauncherWatch

QUOTA = "docker-cpu-quota"
_POLL_S = 0.1
_LIST_S = 10
_STATES = {"running": ServerState.RUNNING, "paused": ServerState.PAUSED}
_LAST_UP = "Started Metrics Service"
"""Triton's log line at the start of the last of its three services."""


class DockerLauncher:
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
        self._state = state
        self._options = options or ContainerOptions()
        self._given_address = address
        self._say = say
        self._starting = Starting()
        self._mps = MpsDaemons()
        self._engine_told: dict[str, Any] | None = None
        self._processes: dict[str, Mapping[int, Listed]] = {}
        self._counters = QuotaCounters()
        self._pids: dict[str, int] = {}

    def enforcement(self) -> str | None:
        """Return the CPU quota of the engine's kernel; on a GPU it is MPS, per server."""
        return QUOTA if self._told().get("CpuCfsQuota") else None

    def capabilities(self) -> tuple[Capability, ...]:
        """Return the engine, its quota, the image, and whether a container can get a GPU."""
        try:
            with self._engine() as client:
                info, version = client.info(), client.version()
                image = self._image_found(client)
        except EngineError as error:
            return (Capability("docker", False, "no engine", str(error)),)
        quota = bool(info.get("CpuCfsQuota"))
        toolkit = "nvidia" in (info.get("Runtimes") or {})
        return (
            Capability("docker", True, f"engine {version['Version']} at {self._address()}"),
            Capability("docker cpu quota", quota, "cgroups " + str(info.get("CgroupVersion", "1"))),
            image,
            Capability(
                "docker gpus",
                toolkit,
                "the NVIDIA runtime is there" if toolkit else "no NVIDIA runtime",
                None if toolkit else "install the NVIDIA container toolkit and restart the engine",
            ),
        )

    def inventory(self) -> None:
        """Return None: its devices are this host's."""

    def start(self, spec: ServerSpec, *, deadline_s: float) -> Server:
        """Start one container and wait until its Triton is ready; where it already runs, wait for it."""
        deadline = time.monotonic() + deadline_s
        with self._starting.one_at_a_time(spec.name), self._engine() as client:
            adopted = self._adopt(client, spec, deadline)
            if adopted is not None:
                return adopted
            core, gpu = self._place(spec, start=True)
            engine.have_image(client, self._options, self._say)
            for _ in range(ATTEMPTS):
                with self._starting.ports() as ports:
                    server = self._server(spec, ports)
                    wanted = self._container(server, core, gpu)
                    try:
                        if self._run(client, server, wanted, deadline):
                            return self._found(client, spec.name) or server
                    except BaseException:
                        self._remove(client, spec)
                        raise
                    self._remove(client, spec)
            raise EngineError(f"{spec.name}: {ATTEMPTS} times {BAD_LUCK}; try again")

    def command(self, spec: ServerSpec) -> str:
        """Return the `docker run` that is equivalent to a start."""
        core, gpu = self._place(spec, start=False)
        with self._starting.ports() as ports:
            server = replace(self._server(spec, ports), reload_key=program.KEY_PLACEHOLDER)
        return containers.run_line(self._container(server, core, gpu))

    def servers(self, fleet: str) -> tuple[Server, ...]:
        """Return the fleet's containers."""
        with self._engine(_LIST_S) as client:
            ours = self._of_fleet(client, fleet)
        found = sorted(map(_server_of, ours), key=lambda s: s.name)
        pids = {c.id: int(c.attrs["State"].get("Pid", 0)) for c in ours}
        running = {pids[s.id]: s.name for s in found if s.state is not ServerState.EXITED}
        self._processes[fleet] = process_table.listed(running)
        return tuple(found)

    def servers_of_host(self) -> tuple[Server, ...]:
        """Return the servers in running containers, of all fleets."""
        with self._engine() as client:
            every = client.containers.list(filters={"label": containers.SERVER_LABEL}, ignore_removed=True)
            return tuple(map(_server_of, every))

    def stop(self, server: Server, *, drain_s: float) -> None:
        """Have Triton finish its requests, for up to `drain_s`, then kill and remove the container."""
        with self._engine() as client:
            one = self._ours(client, server.name)
            if one is not None and one.id == server.id:
                self._end(one, server, drain_s)
            if self._ours(client, server.name) is None:
                shared_memory.remove(labels.memory_prefix(server.spec))

    def _end(self, one: Any, server: Server, drain_s: float) -> None:
        deadline = time.monotonic() + drain_s
        with contextlib.suppress(docker.errors.NotFound):
            if one.status == "paused":
                one.unpause()
                if drain_s > 0:
                    listening = containers.listening(server, self._options)
                    await_read(server, int(one.attrs["State"]["Pid"]), listening, drain_s / 4)
        # It may have ended by itself. The SDK has two errors for a wait that takes too long.
        late = (requests.exceptions.Timeout, requests.exceptions.ConnectionError)
        with contextlib.suppress(docker.errors.APIError, *late):
            if drain_s > 0:
                one.kill(process_table.END)
                one.wait(timeout=max(deadline - time.monotonic(), 0.1))
        _remove_container(one)

    def resize(self, server: Server, percent: float) -> None:
        """Update the quota of the running container, in about 30 ms; requests in flight continue."""
        if is_gpu(server.spec.device):
            raise InputError(gpus.FIXED, field="percent")
        quota, period = bandwidth(percent)
        with self._engine() as client:
            one = self._ours(client, server.name)
            if one is None:
                raise EngineError(f"{server.name} does not run")
            try:
                one.update(cpu_quota=quota, cpu_period=period)
            except docker.errors.NotFound as error:
                raise EngineError("this engine cannot change a running container (Podman 4)") from error

    def watch(self, fleet: str) -> Watch:
        """Watch the engine's events, and its processes by pidfd once `servers` has listed them."""
        events = EngineEvents(self._address(), fleet)
        ends = ListedEnds(lambda: self._processes.get(fleet, {}), memory_kills)
        return LauncherWatch((events, ends), self._mps)

    def reading(self, device: str) -> DeviceReading:
        """Return NVML's readings of a GPU."""
        return gpus.reading(device)

    def usage(self, server: Server) -> ShareUsage:
        """Return the engine's counters of the container."""
        with self._engine() as client:
            one = self._ours(client, server.name)
            if one is None:
                return ShareUsage(None, None, None)
            told = client.api.stats(one.id, stream=False, one_shot=True)
            on_gpu = is_gpu(server.spec.device)
            pids = {int(row[1]) for row in one.top()["Processes"]} if on_gpu else set()
        cpu = told.get("cpu_stats", {})
        periods = cpu.get("throttling_data", {})
        memory = told.get("memory_stats", {}).get("usage")
        memory_mb = gpus.memory_mb(server.spec.device, pids) if on_gpu else memory / 2**20 if memory else None
        return ShareUsage(
            periods.get("periods"),
            periods.get("throttled_periods"),
            cpu.get("cpu_usage", {}).get("total_usage", 0) / 1e9,
            memory_mb,
        )

    def quota_use(self, server: Server) -> QuotaUse | None:
        """Return the counters of the container's group; None where the engine is on another host."""
        if is_gpu(server.spec.device):
            return None
        if server.id not in self._pids:
            with self._engine() as client:
                one = self._ours(client, server.name)
            if one is None or one.id != server.id:
                return None
            self._pids[server.id] = int(one.attrs["State"].get("Pid", 0))
        return self._counters.read(self._pids[server.id])

    def sweep(self, fleet: str) -> tuple[str, ...]:
        """Remove the fleet's containers that do not run, and shared memory without a server."""
        removed: list[str] = []
        starting = self._starting.names()
        with self._engine() as client:
            alive: set[str] = {labels.digest(name) for name in starting}
            for one in self._of_fleet(client, fleet):
                name = one.labels[containers.NAME_LABEL]
                if one.status in ("created", "exited", "dead") and name not in starting:
                    _remove_container(one)
                    removed.append(f"container {name}")
                else:
                    alive.add(labels.digest(name))
        return (*removed, *shared_memory.sweep(fleet, alive), *self._mps.sweep())

    def _address(self) -> str:
        return engine.local(self._given_address) if self._given_address else engine.address()

    def _engine(self, answer_s: float = ANSWER_S) -> contextlib.AbstractContextManager[docker.DockerClient]:
        return engine.engine(self._address(), answer_s)

    def _told(self) -> dict[str, Any]:
        """Return the engine's description of itself; empty while it does not answer."""
        if self._engine_told is None:
            with contextlib.suppress(EngineError), self._engine() as client:
                self._engine_told = client.info()
        return self._engine_told or {}

    def _container(self, server: Server, core: int | None, gpu: MpsClient | None) -> Container:
        # Below the engine's own group, all containers together weigh as much as one other program.
        parent = "/" if self._told().get("CgroupDriver") == "cgroupfs" else None
        return containers.container(server, self._options, core=core, gpu=gpu, cgroup_parent=parent)

    def _image_found(self, client: docker.DockerClient) -> Capability:
        image = self._options.image
        try:
            client.images.get(image)
        except docker.errors.ImageNotFound:
            return Capability("triton image", False, f"{image} is not here yet", f"docker pull {image}")
        return Capability("triton image", True, image)

    def _place(self, spec: ServerSpec, *, start: bool) -> tuple[int | None, MpsClient | None]:
        """Return the core or the MPS client; with `start`, start the GPU's MPS daemon."""
        if is_gpu(spec.device):
            shares.check(spec, self._on_gpus())
            client = self._mps.client(spec, start=start)
            mps.check_user(client, client.uid)
            return None, client
        return core_of(spec.device), None

    def _on_gpus(self) -> list[ServerSpec]:
        """Return our servers on GPUs, of any fleet."""
        return [server.spec for server in self.servers_of_host() if is_gpu(server.spec.device)]

    def _server(self, spec: ServerSpec, ports: ServerPorts) -> Server:
        enforced_by = mps.MECHANISM if is_gpu(spec.device) else self.enforcement()
        return program.new_server(spec, ports, enforced_by)

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

    def _found(self, client: docker.DockerClient, name: str) -> Server | None:
        one = self._ours(client, name)
        return None if one is None else _server_of(one)

    def _adopt(self, client: docker.DockerClient, spec: ServerSpec, deadline: float) -> Server | None:
        """Return the running server once it is ready; remove one that does not run, and return None."""
        running = self._found(client, spec.name)
        if running is None or running.state is not ServerState.RUNNING:
            self._remove(client, spec)
            return None
        for field, (wanted, has) in labels.spec_difference(spec, running.spec).items():
            problem = f"{spec.name} already runs with {has!r}, not {wanted!r}: stop it first"
            raise InputError(problem, field=field)
        while not readiness.is_ready(running):
            if time.monotonic() > deadline:
                self._remove(client, spec)
                raise LaunchTimeout(f"{spec.name} ran already and was not ready in time: it is removed")
            now = self._found(client, spec.name)
            if now is None or now.state is not ServerState.RUNNING:
                self._remove(client, spec)
                return None
            time.sleep(_POLL_S)
        return running

    def _run(self, client: docker.DockerClient, server: Server, wanted: Container, deadline: float) -> bool:
        """Start a server and wait until it is ready; return False where it fails by chance (`BAD_LUCK`)."""
        one = client.containers.create(**containers.for_sdk(wanted))
        try:
            one.start()
        except docker.errors.APIError as error:
            if "port is already allocated" in str(error):
                return False
            raise
        while True:
            one.reload()
            if one.status != "running":
                log = _log(one)
                if server_log.by_chance(log):
                    return False
                if one.attrs["State"].get("OOMKilled"):
                    raise EngineError(f"{server.name} ended before it was ready: {out_of_memory(server)}")
                raise EngineError(self._failure(server, "ended before it was ready", log))
            if readiness.is_ready(server) and self._listens(one, server):
                # Podman 4 cannot; there, only the controller restarts it.
                with contextlib.suppress(docker.errors.NotFound):
                    one.update(restart_policy=containers.RESTART)
                return True
            if time.monotonic() > deadline:
                raise LaunchTimeout(self._failure(server, "was not ready in time", _log(one)))
            time.sleep(_POLL_S)

    def _listens(self, one: Any, server: Server) -> bool:
        """Return whether the container has all its ports: Triton serves HTTP before it finds one taken."""
        if self._options.network is containers.Network.BRIDGE:
            return True  # the engine published them, or refused
        try:
            return process_table.listens(one.attrs["State"]["Pid"], process_table.ports_of(server))
        except psutil.AccessDenied:
            return _LAST_UP in _log(one)  # another user's process: only its log shows it

    def _failure(self, server: Server, what: str, log: str) -> str:
        """Return the message, and keep the log, which would be removed with the container."""
        kept = self._state / server.spec.labels.fleet / "logs" / f"{labels.folder_name(server.name)}.log"
        with contextlib.suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(log)
        return server_log.failure(server.name, what, log, kept)

    def _remove(self, client: docker.DockerClient, spec: ServerSpec) -> None:
        one = self._ours(client, spec.name)
        if one is not None:
            _remove_container(one)
        shared_memory.remove(labels.memory_prefix(spec))


def _server_of(one: Any) -> Server:
    state = _STATES.get(one.status, ServerState.EXITED)
    server = labels.server_of(one.labels[containers.SERVER_LABEL], id=one.id, state=state)
    short = state is ServerState.EXITED and one.attrs["State"].get("OOMKilled")
    return replace(server, end=out_of_memory(server)) if short else server


def _log(one: Any) -> str:
    return str(one.logs().decode(errors="replace"))


def _remove_container(one: Any) -> None:
    """Remove a container and its volumes, running or not, if it still exists."""
    with contextlib.suppress(docker.errors.NotFound):
        try:
            one.remove(force=True, v=True)
        except docker.errors.APIError as error:
            if "already in progress" not in str(error):
                raise
