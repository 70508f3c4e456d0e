"""All refusals of `ctl apply`, before a plan changes anything, and the request that passed them.

Shares of other fleets are read from their servers' labels, whatever their state folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from controlplane.control.converge.devices import NOTHING_KNOWN, map_devices
from controlplane.domain import triton_releases
from controlplane.domain.device import CPU_DEVICE
from controlplane.domain.errors import EngineError, InputError, MissingTool, NotNow
from controlplane.domain.fleet import LIVE_BATCHES, Cluster, Role, Server, ServerSpec
from controlplane.domain.observation import Event
from controlplane.domain.plan import Plan
from controlplane.domain.serving import FollowLoad, Serving
from controlplane.files.documents import Document
from controlplane.files.fleets import FleetFiles, FleetSettings
from controlplane.files.following import Following
from controlplane.files.pinned import Applied
from controlplane.files.plans import spec_of
from controlplane.planning.replan.differences import Ending
from controlplane.ports import Launcher
from controlplane.report.tables.change_table import ending_line
from controlplane.runtime.devices import devices_of
from controlplane.runtime.fleet.history import History

if TYPE_CHECKING:
    from controlplane.runtime.fleet.execute import Say
    from controlplane.runtime.fleet.fleet import Fleet

Shares = Mapping[str, Mapping[str, float]]
"""Device -> fleet -> percent."""


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    """A plan to bring about, with its settings; `verb` and `cause` are for the history.

    Partitions that were redirected since this plan was applied stay where they are, unless `as_planned`.
    `rename_endpoints` accepts that an endpoint ends though its workload stays. `made_from` is the hash of the
    plan that must still run, and whose models the new plan serves. `models` are pinned ones; without them
    those that are in the repository now. `controlled`: a controller runs afterwards, and ends what has not
    drained in time.
    """

    plan: Plan
    settings: FleetSettings
    as_planned: bool = False
    rename_endpoints: bool = False
    verb: str = "apply"
    cause: str = "by hand"
    made_from: str | None = None
    models: Applied | None = None
    controlled: bool = True


def settings(
    plan: Plan,
    fleet: Fleet,
    *,
    repository: Path,
    output: Path,
    section: Serving,
    known: Mapping[str, str] = NOTHING_KNOWN,
    runs: bool = False,
) -> FleetSettings:
    """Return the settings for a plan. Raises InputError where the host or the cluster lacks a device.

    Or NotNow where it may be one of a node that is not ready, as for some seconds after the API server was
    away. Also MissingTool where the fleet's batches change, and the library is not here. `known` are devices
    of an earlier plan that this host has no record of, or of this one where it `runs`: their nodes may be
    lost.
    """
    before, library = fleet.files.settings(), None
    if before is None or before.batch_library is not None:  # else with it all its servers would be new
        library = fleet.launcher.batch_library()
        if library is None and before is not None and os.environ.get(LIVE_BATCHES) != "off":
            raise MissingTool(
                "the fleet's batches change while it serves, and this installation has no batch library for "
                "that: build it (`make setup`, or install Trisect again, with a C compiler), or set "
                f"${LIVE_BATCHES}=off, which replaces every server by one with fixed batches"
            )
    return FleetSettings(
        launcher=fleet.launcher.name,
        repository=str(repository.resolve()),
        output=str(output.resolve()),
        devices=known if runs else _mapped(plan, fleet.launcher, known if before is None else before.devices),
        endpoints=section.gateway,
        cluster=Cluster(section.context, section.namespace),
        load_timeout_s=section.load_timeout_s,
        batch_library=library,
    )


def _mapped(plan: Plan, launcher: Launcher, known: Mapping[str, str]) -> Mapping[str, str]:
    try:
        return map_devices(plan, devices_of(launcher), known)
    except InputError as error:
        with contextlib.suppress(InputError):
            map_devices(plan, devices_of(launcher, lost=True), known)
            raise NotNow(f"{error}; a node that has it is not ready: `kubectl get nodes`") from None
        raise


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


def check_promises(plan: Plan, document: Document, profiles: Path, files: FleetFiles, say: Say) -> None:
    """Verify the plan again, with this host's present profiles.

    Raises InputError for a plan that does not keep its promises, or where a profile is missing. The plan that
    the fleet has already is applied again with a warning: profiles measured since do not undo it, and a
    fleet without one of its servers keeps fewer promises.
    """
    from controlplane.runtime.jobs.plan import refuse_violations, verify_plan

    try:
        way_out = "plan again, or accept them with --allow violations"
        refuse_violations(verify_plan(plan, profiles), document, way_out)
    except InputError as error:
        applied = files.plan()
        if applied is None or applied.gpus != plan.gpus:
            raise
        say(f"warning: {error}; it is applied again as it was")


def shares_of_others(servers: Iterable[Server], fleet: str) -> Shares:
    """Return the shares of all fleets but this one. A shadow counts only where it serves alone."""
    chosen: dict[tuple[str, str], ServerSpec] = {}
    for spec in (server.spec for server in servers):
        labels = spec.labels
        if labels.fleet == fleet or labels.role in (Role.PROFILE, Role.SHARED):
            continue
        key = labels.fleet, labels.partition
        before = chosen.get(key)
        if before is None or _weight(spec) > _weight(before):
            chosen[key] = spec
    found: dict[str, dict[str, float]] = {}
    for (owner, _), spec in sorted(chosen.items()):
        its = found.setdefault(spec.device, {})
        its[owner] = its.get(owner, 0.0) + spec.percent
    return found


def _weight(spec: ServerSpec) -> tuple[bool, float]:
    return spec.labels.role is Role.ACTIVE, spec.percent


def check_shares(
    plan: Plan, document: Document, devices: Mapping[str, str], others: Shares, say: Say, *, accepted: bool
) -> None:
    """Raise InputError, at the plan's device, where a plan and other fleets take more than all of it.

    `devices` are the host's names of the plan's devices. `accepted`: warn instead, for cores; MPS refuses
    more than a whole GPU.
    """
    for index, gpu in enumerate(plan.gpus):
        theirs = others.get(devices[gpu.id], {})
        ours = sum(partition.percent for partition in gpu.partitions)
        total = ours + sum(theirs.values())
        if not theirs or not ours or total <= 100:
            continue
        whose = ", ".join(f"fleet {fleet!r} has {percent:g} %" for fleet, percent in theirs.items())
        problem = (
            f"{ours:g} % of {devices[gpu.id]} are planned, and {whose} of it: {total:g} % together, so P99s "
            "will break"
        )
        is_core = gpu.type == CPU_DEVICE
        if accepted and is_core:
            say(f"warning: {problem}")
            continue
        consent = ", or accept it with --allow overcommit" if is_core else ""
        document.fail(
            f"{problem}; plan smaller shares or another device, or destroy the other fleet{consent}",
            ("gpus", index, "id"),
        )


def refuse_namesake(servers: Iterable[Server], files: FleetFiles) -> None:
    """Raise InputError where a fleet of this name runs from another state folder: it would be ended."""
    if files.exists():
        return
    for server in servers:
        if server.spec.labels.fleet != files.fleet or server.log_path is None:
            continue
        root = Path(server.log_path).parents[2]
        if root != files.directory.parent and FleetFiles(root, files.fleet).exists():
            raise InputError(
                f"fleet {files.fleet!r} runs from another state folder ({root}): take another name, or set "
                f"XDG_STATE_HOME to {root.parent}",
                field="--fleet",
            )


def check_endings(ended: Iterable[Ending], say: Say, *, accepted: bool) -> None:
    """Report the endpoints that a plan ends. Raises InputError where a workload stays, unless accepted."""
    renamed = []
    for ending in ended:
        say(ending_line(ending))
        renamed += [ending.endpoint] if ending.heirs else []
    if renamed and not accepted:
        raise InputError(
            f"would end though their workloads stay: {', '.join(renamed)}; nothing was touched: keep them in "
            "the spec and plan again, or accept it with --allow renames",
            field="endpoints",
        )


def checked_follow(files: FleetFiles, plan: Plan, say: Say, *, all_cores: bool) -> Following:
    """How a fleet is to follow its load with this plan, which needs its spec for that. Raises InputError."""
    known, spec = files.following.settings(), spec_of(plan)
    present = FollowLoad(known.dwell_s) if known.follow else None
    wanted = present if plan.serve is None else plan.serve.follow_load
    if wanted is not None and spec is None:
        if wanted != present:
            raise InputError("needs a plan with its spec: `ctl plan` again", field="serve.follow_load")
        say("warning: the fleet stops following its load: the plan has no spec; `ctl plan` again")
        return known
    return Following(
        follow=wanted is not None,
        dwell_s=(wanted or FollowLoad()).stabilisation_s,
        all_cores=all_cores,
    )


def keep_follow(files: FleetFiles, plan: Plan, following: Following, profiles: Path) -> None:
    """Write down how a fleet follows, and the profiles to plan with. Raises EngineError."""
    if plan.spec is not None:
        files.following.keep_profiles(profiles)
    if following != files.following.settings():
        files.following.write(following)
