"""What this host has for shares of GPUs: the lines of `ctl doctor`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Labels, Role, ServerSpec
from controlplane.ports import Capability
from launchers.gpu import control, gpus, probe, proof
from launchers.gpu.gpus import HostGpu
from launchers.gpu.mps import MpsDaemons

_DRIVER = "install the NVIDIA driver; without a GPU the cpu device stands in"
_RELOAD = "nvidia-smi says the same: restart the host, or load the driver's modules anew"
_DEVICE_FILE = "as root `nvidia-modprobe -u -c=0`; in a container give it the device, and start it anew"
_NOT_HELD = "plans rest on shares: look at MPS's logs and at the driver's release"
_SHOWN_PIDS = 3


def capabilities(daemons: MpsDaemons) -> tuple[Capability, ...]:
    """Return the GPUs, the MPS tools, and for each GPU its mode, its MPS daemon and its processes."""
    program, found, trouble = control.found(), gpus.inventory(), gpus.trouble()
    names = [f"{gpu.index}: {gpu.name}" for gpu in found] + ([trouble] if trouble else [])
    remedy = _RELOAD if trouble else _DRIVER
    lines = [
        Capability("nvidia gpus", bool(found) and not trouble, ", ".join(names) or "none", remedy),
        Capability("mps", program is not None, program or f"no {control.PROGRAM}", control.LACKING),
    ]
    for gpu in found:
        lines.append(_mode(gpu))
        if program is not None and not gpu.unshared:
            lines += _daemon_and_processes(gpu, daemons)
    # Last: the first CUDA program, as the one that measures a share, has nvidia-modprobe make it.
    if (away := gpus.device_file_away()) is not None:
        lines.append(
            Capability("nvidia devices", False, f"{away}: every CUDA program opens it", _DEVICE_FILE)
        )
    return tuple(lines)


def _mode(gpu: HostGpu) -> Capability:
    name = f"gpu {gpu.index} mode"
    if gpu.unshared:
        return Capability(name, False, *gpu.unshared)
    if gpu.mode == "EXCLUSIVE_PROCESS":
        return Capability(name, True, "EXCLUSIVE_PROCESS: nothing runs beside MPS")
    advice = f"nvidia-smi -i {gpu.index} -c EXCLUSIVE_PROCESS turns that into an error"
    return Capability(
        name, True, f"DEFAULT: a program that misses its MPS daemon takes the whole GPU in turns; {advice}"
    )


def _daemon_and_processes(gpu: HostGpu, daemons: MpsDaemons) -> Iterator[Capability]:
    name, pipes = f"gpu {gpu.index} mps daemon", daemons.pipes(gpu.uuid)
    try:
        yield (daemon := _daemon(name, gpu, pipes))
        seen = proof.clients_of(gpu.uuid, pipes)
        yield _processes(f"gpu {gpu.index} processes", seen)
    except EngineError as error:
        yield Capability(name, False, str(error))
        return
    if daemon.available:
        yield _share(f"gpu {gpu.index} share", gpu, daemons, idle=seen.are_none)


def _share(name: str, gpu: HostGpu, daemons: MpsDaemons, *, idle: bool) -> Capability:
    """Measure on an idle GPU whether half of it takes twice as long."""
    if not idle:
        return Capability(name, True, "not measured: where others may run, times prove nothing")
    labels = Labels("doctor", "none", "doctor", Role.PROFILE, "none")
    spec = ServerSpec(labels, "/", ("doctor",), gpu.uuid, 100.0)
    try:
        with daemons.starting(gpu.uuid):
            client = daemons.client(spec, start=True)
            daemons.await_server(client, os.getuid())
            held, said = probe.enforced(client.own_environment)
        return Capability(name, held, said, _NOT_HELD)
    except EngineError as error:
        return Capability(name, False, str(error))
    finally:
        daemons.sweep()


def _daemon(name: str, gpu: HostGpu, pipes: Path) -> Capability:
    is_foreign = bool(os.environ.get(control.PIPES))
    servers = control.servers(pipes)
    if servers is None and is_foreign:
        remedy = f"start it, or unset {control.PIPES}"
        return Capability(name, False, f"none answers in {pipes}", remedy)
    ended = proof.server_exit(pipes)
    if ended is not None:
        return Capability(name, False, ended)
    if servers is None:
        return Capability(name, True, "none runs: the first server starts one")
    owner, serves = control.owner(pipes), control.daemon_variable(pipes, "CUDA_VISIBLE_DEVICES")
    if owner not in (0, os.getuid()):
        detail = f"user {owner}'s: a client of user {os.getuid()} would wait for ever"
        return Capability(name, False, detail, f"run as user {owner}, or start a daemon of your own")
    if serves and gpu.uuid not in serves.split(","):
        return Capability(name, False, f"serves {serves}, not {gpu.uuid}", f"set {control.PIPES} to its own")
    if control.FAULT in control.state(pipes):
        return Capability(name, False, "its server is in state FAULT", "ctl destroy, then ctl apply")
    whose = "another program's, which is never ended" if is_foreign else "ours"
    return Capability(name, True, f"answers in {pipes} ({whose})")


def _processes(name: str, seen: proof.GpuClients) -> Capability:
    clients = f"MPS clients: {len(seen.clients)}"
    if seen.others is None:
        why = "the driver lists none, or those of another pid namespace"
        return Capability(name, True, f"{clients}; what runs without MPS is not known: {why}")
    if not seen.others:
        return Capability(name, True, clients)
    shown = ", ".join(map(str, sorted(seen.others)[:_SHOWN_PIDS]))
    more = ", ..." if len(seen.others) > _SHOWN_PIDS else ""
    detail = f"{clients}; without MPS, and so beside every share: process {shown}{more}"
    return Capability(name, False, detail, "end them, or give them a GPU of their own")
