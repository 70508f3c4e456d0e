"""Checks before a plan changes anything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from controlplane.control.converge.devices import NOTHING_KNOWN, map_devices
from controlplane.domain import triton_releases
from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.fleet import Cluster, Endpoints, Server
from controlplane.domain.plan import Plan
from controlplane.files.documents import Document
from controlplane.files.fleets import FleetSettings
from controlplane.ports import Launcher
from controlplane.runtime.devices import devices_of
from controlplane.runtime.fleet.execute import Say
from controlplane.runtime.fleet.fleet import Fleet
from controlplane.runtime.fleet.history import Event, History


def settings(
    plan: Plan,
    fleet: Fleet,
    *,
    repository: Path,
    output: Path,
    endpoints: Endpoints,
    cluster: Cluster,
    known: Mapping[str, str] = NOTHING_KNOWN,
) -> FleetSettings:
    """Return the settings for a plan. Raises InputError where the host or the cluster lacks a device.

    `known` are devices of an earlier plan that this host has no record of.
    """
    before = fleet.files.settings()
    return FleetSettings(
        launcher=fleet.launcher.name,
        repository=str(repository.resolve()),
        output=str(output.resolve()),
        devices=map_devices(plan, devices_of(fleet.launcher), known if before is None else before.devices),
        endpoints=endpoints,
        cluster=cluster,
    )


def check_quota(launcher: Launcher, say: Say, *, required: bool) -> None:
    """Warn, or with `required` raise EngineError, where nothing enforces shares."""
    if launcher.enforcement() is not None:
        return
    problem = "nothing on this host can enforce shares: each partition takes as much as it can"
    if required:
        raise EngineError(f"{problem} (--require-quota); `ctl doctor` shows what is missing")
    say(f"warning: {problem}")


def warn_of_old_servers(servers: Iterable[Server], fleet: Fleet) -> None:
    """Warn of servers whose Triton lacks known fixes: of all once in a fleet's life, then in short."""
    from controlplane.triton.client import versions

    problem = triton_releases.warning(versions(servers))
    if problem is None:
        return
    history = History(fleet.files.history)
    known = None
    with contextlib.suppress(EngineError):  # a damaged history: named in full again
        known = history.latest("triton", ("warning",)).get(fleet.name)
    if known is None or _version_in(known.reason) != _version_in(problem):
        history.write(Event(fleet.clock.wall(), "warning", "triton", fleet.name, problem))
        fleet.say(f"warning: {problem}")
    else:
        fleet.say(f"warning: Triton {_version_in(problem)} lacks fixes of vulnerabilities (`ctl doctor`)")


def _version_in(problem: str) -> str:
    return problem.partition(" Triton ")[2].partition(",")[0]


def check_promises(plan: Plan, document: Document, profiles: Path, *, allow_violations: bool) -> None:
    """Verify the plan again, with this host's present profiles, unless violations are allowed.

    Raises InputError for a plan that does not keep its promises, or where a profile is missing.
    """
    if allow_violations:
        return
    from controlplane.runtime.jobs.plan import verify_plan

    violations = verify_plan(plan, profiles)
    if not violations:
        return
    shown = "; ".join(f"{v.subject}: {v.reason}" for v in violations[:3])
    more = f" (and {len(violations) - 3} more)" if len(violations) > 3 else ""
    raise InputError(
        f"the plan does not keep its promises: {shown}{more}; plan again, or accept them with "
        "--allow-violations",
        file=document.file,
    )
