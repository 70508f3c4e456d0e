"""The life of a server of this host: on one of its cores, or as a client of the MPS daemon of a GPU."""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from controlplane.domain.errors import DISK_FULL, EngineError
from controlplane.domain.fleet import Batches, Server, ServerSpec, ServerState, ShareUsage
from launchers.cpu_quota.mechanism import core_of
from launchers.gpu import gpus, mps, proof
from launchers.host import server_sockets, shared_memory
from launchers.lifecycle import Lifecycle
from launchers.triton import batches, labels, readiness
from launchers.triton.batches import BatchFiles

_PASS_S = 2.0
"""How long an MPS daemon may take to answer while servers are listed."""


@dataclass(frozen=True, slots=True)
class HostPlace:
    """Where a server of this host runs: on a core, or as a client of the MPS daemon of a GPU.

    `batches` are the files by which those of its models change, where any do.
    """

    core: int | None = None
    gpu: mps.MpsClient | None = None
    batches: BatchFiles | None = None


class HostLifecycle(Lifecycle[HostPlace]):
    """The common part of the launchers whose servers share this host's cores, GPUs and MPS daemons."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self._used_before_mb: dict[str, float | None] = {}
        """Memory in use of a server's GPU before its start, by the server's name."""

    def _host(self, spec: ServerSpec) -> str:
        return server_sockets.new_host(self._state, spec)

    @abstractmethod
    def servers_of_host(self) -> tuple[Server, ...]:
        """Return the servers that run, of all fleets."""

    @abstractmethod
    def _user(self, client: mps.MpsClient) -> int:
        """Return the user as which a server on a GPU runs."""

    @abstractmethod
    def _processes(self, server: Server) -> Collection[int]:
        """Return the pids of a server's Triton and of its models' processes, as this host sees them."""

    def _holding(self, spec: ServerSpec) -> AbstractContextManager[None]:
        return self._mps.starting(spec.device) if self._on_gpu(spec) else contextlib.nullcontext()

    def _place(self, spec: ServerSpec, *, start: bool) -> HostPlace:
        """Return the core or the MPS client; with `start`, start the GPU's MPS daemon.

        Raises EngineError where another user has the daemon.
        """
        files = self._batch_files(spec) if spec.batches else None
        if not self._on_gpu(spec):
            return HostPlace(core=core_of(spec.device), batches=files)
        gpus.check_shares(spec, (server.spec for server in self.servers_of_host()))
        client = self._mps.client(spec, start=start)
        user = self._user(client)
        mps.check_user(client, user)
        if start:
            self._mps.await_server(client, user)
            self._mps.prove_share(client, user)
            self._used_before_mb[spec.name] = gpus.used_mb(spec.device)
        return HostPlace(gpu=client, batches=files)

    def _clean(self, spec: ServerSpec) -> list[str]:
        """Remove what a server that has ended owned on this host; return a line for each."""
        server_sockets.remove(self._state, spec)
        self._batch_files(spec).remove()
        return shared_memory.remove(labels.memory_prefix(spec))

    def _swept(self, fleet: str, begun: tuple[Path, ...], alive: set[str]) -> list[str]:
        """Remove what had `begun` before and is of no server in `alive` (digests); return a line for each."""
        batches.sweep(self._batch_root(fleet), alive)
        server_sockets.sweep(server_sockets.folder_of_fleet(self._state, fleet), begun, alive)
        return [*shared_memory.sweep(fleet, alive), *self._mps.sweep()]

    def _begun(self, fleet: str) -> tuple[Path, ...]:
        """Return what is in a fleet's folder of sockets, but for starts that may not have a process yet."""
        return server_sockets.begun(server_sockets.folder_of_fleet(self._state, fleet))

    def _with_gpu_memory(self, usage: ShareUsage, server: Server) -> ShareUsage:
        """Return the counters with the server's memory on its GPU, and how it was read."""
        listed = gpus.memory_mb(server.spec.device, self._processes(server))
        if listed is not None:
            return replace(usage, memory_mb=listed, memory_by="processes")
        before, now = self._used_before_mb.get(server.name), gpus.used_mb(server.spec.device)
        if before is None or now is None or now <= before:  # a neighbour ended meanwhile
            return replace(usage, memory_mb=None)
        return replace(usage, memory_mb=now - before, memory_by="growth")

    def _release(self, server: Server) -> None:
        """End the GPU work of a server whose processes are about to be killed."""
        if self._on_gpu(server.spec):
            self._mps.release(server.spec.device, self._processes(server))

    def _failure(self, server: Server, problem: str, reason: str, log: str) -> str:
        found = super()._failure(server, problem, reason, log)
        ended = proof.server_exit(self._mps.pipes(server.spec.device)) if self._on_gpu(server.spec) else None
        return found if ended is None else f"{found}; {ended}"

    def _check_share(self, server: Server) -> None:
        """Wait until the MPS daemon lists the server's processes, with their percentage.

        Raises EngineError, and LibraryIgnored.
        """
        if without := self._batch_files(server.spec).unanswered():
            models = ", ".join(without)
            raise batches.without_library(f"{server.name}: its Triton ignores the batch library for {models}")
        if not self._on_gpu(server.spec):
            return
        device, deadline = server.spec.device, time.monotonic() + proof.LISTED_S
        pipes = self._mps.pipes(device)
        while True:
            seen = proof.clients_of(device, pipes)
            lack = proof.lack(server.spec.percent, self._processes(server), seen)
            if lack is None:
                return
            if time.monotonic() > deadline:
                raise EngineError(f"{server.name}: {lack}: {proof.way_out(pipes)}")
            time.sleep(self._poll_s)

    def _with_shares(self, listed: Iterable[Server]) -> tuple[Server, ...]:
        """Return listed servers with their present batches; none where these cannot be changed.

        One on a GPU that has not its share is about to end, and nothing holds it. While a daemon hangs,
        nothing is known of its clients.
        """
        seen: dict[str, proof.GpuClients | None] = {}
        found = []
        for server in listed:
            device = server.spec.device
            if server.state is ServerState.RUNNING and self._on_gpu(server.spec):
                if device not in seen:
                    seen[device] = None
                    with contextlib.suppress(EngineError):
                        seen[device] = proof.clients_of(device, self._mps.pipes(device), _PASS_S)
                    self._mps.shorten_log(device)
                server = self._as_seen(server, seen[device])
            present = self._batch_files(server.spec).read() if server.spec.batches else ()
            found.append(replace(server, spec=replace(server.spec, batches=present)))
        return tuple(found)

    def _with_files(self, spec: ServerSpec, place: HostPlace, *, shared: bool = False) -> HostPlace:
        """Make a server's batch files; a full disk has no room for them, and the server's batches stay."""
        if place.batches is None:
            return place
        try:
            place.batches.make(spec.batches, shared=shared)
        except OSError as error:
            place.batches.remove()
            if error.errno not in DISK_FULL:
                raise EngineError(f"the batch files of {spec.name} cannot be made: {error}") from error
            return replace(place, batches=None)
        return place

    def batch_library(self) -> str | None:
        """Return the library for this host's architecture, where it was built."""
        return batches.library()

    def set_batches(self, server: Server, batches: Batches) -> None:
        """Write the numbers that the server's library reads."""
        self._batch_files(server.spec).set(batches)

    def _batch_files(self, spec: ServerSpec) -> BatchFiles:
        return BatchFiles(self._batch_root(spec.labels.fleet) / labels.digest(spec.name))

    def _batch_root(self, fleet: str) -> Path:
        return self._state / fleet / "batches"

    def _as_seen(self, server: Server, seen: proof.GpuClients | None) -> Server:
        lack = None if seen is None else proof.lack(server.spec.percent, self._processes(server), seen)
        if seen is not None and lack is None:
            return server
        # One that loads its models is no client yet.
        lost = lack is not None and server.end is None and readiness.is_ready(server)
        return replace(server, enforced_by=None, end=f"without its share: {lack}" if lost else server.end)
