"""Checks of this host's capabilities. Each one is tried, not assumed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata

from controlplane.domain import triton_releases
from controlplane.domain.errors import EngineError, MissingTool
from controlplane.gateway.running import reuses_grpc, version_numbers
from controlplane.gateway.startup import haproxy_program
from controlplane.ports import Capability, Launcher


def examine(launchers: tuple[Launcher, ...], fleets: Sequence[str] = ()) -> tuple[Capability, ...]:
    """Return every capability that Trisect can use, present or missing, with the way to get it.

    `fleets` are the names of the fleets of this host, whose servers' versions are checked.
    """
    found = [
        Capability(
            "python", sys.version_info >= (3, 11), sys.version.split()[0], "install Python 3.11 or newer"
        ),
        Capability("trisect", True, metadata.version("trisect")),
        Capability(
            "cores", True, f"{len(os.sched_getaffinity(0))} usable: {sorted(os.sched_getaffinity(0))}"
        ),
        _haproxy(),
    ]
    for launcher in launchers:
        own = launcher.capabilities()
        found.extend(own)
        found.append(_shares(launcher, own))
        found += [state for fleet in fleets if (state := _versions(launcher, fleet)) is not None]
    return tuple(dict.fromkeys(found))  # two launchers of this host have the same GPUs


def _versions(launcher: Launcher, fleet: str) -> Capability | None:
    """Whether the fleet's servers have all known fixes; None where none of this launcher's answers."""
    from controlplane.triton.client import versions

    try:
        found = versions(launcher.servers(fleet))
    except EngineError:
        return None
    if not found:
        return None
    problem = triton_releases.warning(found)
    name = f"fleet {fleet}"
    if problem is None:
        return Capability(name, True, f"Triton {', '.join(sorted(set(found)))}")
    return Capability(name, False, problem, "docs/quickstart-gpu.md, Images")


def _shares(launcher: Launcher, own: Sequence[Capability]) -> Capability:
    name, held = f"{launcher.name} shares", launcher.enforcement()
    if held is not None:
        return Capability(name, True, f"shares are held by {held}")
    for needed in own:
        # A launcher without its engine cannot know which shares the host can enforce.
        if needed.name == launcher.name and not needed.available:
            return Capability(name, False, needed.detail, f"see {needed.name}")
    remedy = "run as root, in a delegated cgroup, or where systemd-run --user works"
    return Capability(name, False, "shares are not enforced on this host", remedy)


def _haproxy() -> Capability:
    remedy = "apt-get install haproxy"
    try:
        path = haproxy_program()
    except MissingTool:
        return Capability("haproxy", False, "not found", remedy)
    said = subprocess.run([path, "-vv"], capture_output=True, text=True, timeout=10, check=False).stdout
    lacking = [name for name in ("LUA", "PCRE") if f"+{name}" not in said]
    if lacking:
        return Capability("haproxy", False, f"built without {' and '.join(lacking)}", remedy)
    version = said.split("\n")[0].split(" 20")[0].strip()
    if (3, 2, 0) <= version_numbers(version) < (3, 2, 2):
        # Its `leastconn` loops over a server that does not answer, until a watchdog ends the process.
        return Capability(
            "haproxy", False, f"{version} ends itself when a server dies", "install 3.2.2 or later"
        )
    cost = (
        ""
        if reuses_grpc(version)
        else "; opens a connection for each gRPC request to later servers, unlike 2.6.18, 2.8.10 and 3.0"
    )
    return Capability("haproxy", True, f"{version}{cost}", remedy)
