"""Where `ctl apply` and `ctl diff` bring a plan: this host's controller, or controllers in a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from controlplane.cli import cluster, launcher_registry, options, wiring
from controlplane.cli.fleet import committed
from controlplane.cli.options import Allowance
from controlplane.cli.output import answer, say
from controlplane.domain.fleet import Cluster, GatewayConfig
from controlplane.domain.plan import Plan
from controlplane.domain.serving import Difference, LauncherName, Serving, differences
from controlplane.files.documents import Document
from controlplane.files.following import Following
from controlplane.files.plans import read_plan
from controlplane.render.source import with_composing
from controlplane.report.tables.change_table import terms_line
from controlplane.runtime.fleet import controller_process, preflight
from controlplane.runtime.fleet.execute import commands, describe
from controlplane.runtime.fleet.fleet import Fleet
from controlplane.runtime.fleet.in_cluster import FleetInCluster
from controlplane.runtime.fleet.rendering import check_models
from controlplane.runtime.jobs.completing import complete_or_refuse


@dataclass(frozen=True, slots=True)
class Wish:
    """What a command line says of a fleet; None, and a gateway's option without a value: as it runs now.

    `gateway` has the values of options by their names. `confirmed`: a person will see the steps first.
    """

    plan: Path
    fleet: str
    repository: Path
    profiles: Path
    output: Path
    launcher: LauncherName | None
    place: Cluster
    gateway: Mapping[str, object] = field(default_factory=dict)
    follow: preflight.FollowOptions = field(default_factory=preflight.FollowOptions)
    allowed: frozenset[Allowance] = frozenset()
    load_timeout_s: float | None = None
    require_quota: bool = False
    as_planned: bool = False
    controlled: bool = True
    confirmed: bool = False


class Target(Protocol):
    """A fleet and the plan that it is to run, after every refusal."""

    def preview(self, *, json: bool) -> bool:
        """Print what would change; return whether anything would."""

    def agreed(self) -> bool:
        """Print the steps and ask whether to go on, where there are any."""

    def change(self, *, json: bool) -> None:
        """Make the fleet match the plan and print the result."""


def target(wish: Wish) -> Target:
    """Return where a plan goes. Raises InputError and EngineError for what may not be applied."""
    plan, document = read_plan(wish.plan)
    if plan.serve is not None:
        wish = _with_section(wish, plan.serve)
    chosen = wiring.chosen_launcher(wish.fleet, wish.launcher)
    if chosen is not LauncherName.KUBERNETES:
        options.refuse(
            "is for --launcher kubernetes",
            {"--context": wish.place.context, "--namespace": wish.place.namespace},
        )
        cores = len(os.sched_getaffinity(0))
        preflight.check_spare_core(plan, document, cores, say, accepted=Allowance.ALL_CORES in wish.allowed)
    else:  # what it would count are devices of this host
        if plan.serve is not None and (plan.serve.follow_load or plan.serve.late_binding):
            document.fail(
                "neither follow_load nor late_binding is for the launcher kubernetes", ("serve", "launcher")
            )
        late_binding = wish.gateway.get("--late-binding")
        options.refuse(
            "is not for --launcher kubernetes",
            {"--follow-load": wish.follow.follow or None, "--late-binding": late_binding or None},
        )
    if Allowance.VIOLATIONS not in wish.allowed:
        preflight.check_promises(plan, document, wish.profiles)
    if chosen is LauncherName.KUBERNETES:
        place = wiring.chosen_cluster(wish.fleet, wish.place)
        kept = cluster.fleet_of_controllers(wiring.fleet_files(wish.fleet), place)
        if kept is not None:
            given = {"--as-planned": wish.as_planned or None, "--no-serve": not wish.controlled or None}
            problem = "is set where gateway and controllers of the cluster are installed"
            options.refuse(problem, {**wish.gateway, **given})
            return _Controllers(wish, plan, kept, place)
    return _of_host(wish, plan, document, chosen)


def _with_section(wish: Wish, section: Serving) -> Wish:
    """Return the wish with what the plan's section says of launcher and place, where no option does."""
    if section.traces:
        options.collector(section.traces)  # needs an extra
    return replace(
        wish,
        launcher=wish.launcher or section.launcher,
        place=Cluster(wish.place.context or section.context, wish.place.namespace or section.namespace),
    )


@dataclass(frozen=True, slots=True)
class _Controllers:
    """A fleet whose controllers run in the cluster: they get its Fleet object."""

    wish: Wish
    plan: Plan
    kept: FleetInCluster
    place: Cluster

    def preview(self, *, json: bool) -> bool:
        allowed = Allowance.VIOLATIONS in self.wish.allowed
        committed.show_manifest(self.wish.fleet, self.plan, allow_violations=allowed, json=json)
        return self.kept.files.plan() != self.plan

    def agreed(self) -> bool:
        return True  # its controllers find the steps

    def change(self, *, json: bool) -> None:
        report = self.kept.apply(
            self.plan,
            committed.settings_of(self.wish.repository, self.wish.output, self.place),
            allow_violations=Allowance.VIOLATIONS in self.wish.allowed,
            rename_endpoints=Allowance.RENAMES in self.wish.allowed,
        )
        committed.show_report(self.wish.fleet, report, json=json)


def _of_host(wish: Wish, plan: Plan, document: Document, chosen: LauncherName | None) -> _Host:
    files = wiring.fleet_files(wish.fleet)
    follow = preflight.checked_follow(files, plan, wish.follow, say)
    endpoints = wiring.chosen_gateway(wish.fleet, wish.gateway, plan.serve)
    place = wiring.chosen_cluster(wish.fleet, wish.place)
    built = wiring.fleet(wish.fleet, launcher_name=chosen, cluster=place)
    settings = preflight.settings(
        plan, built, repository=wish.repository, output=wish.output, endpoints=endpoints, cluster=place
    )
    if wish.load_timeout_s is not None:
        settings = replace(settings, load_timeout_s=wish.load_timeout_s)
    if built.launcher.inventory() is None:
        _check_host(wish, plan, document, built, settings.devices)
    preflight.check_quota(built.launcher, say, required=wish.require_quota)
    renames = Allowance.RENAMES in wish.allowed or wish.confirmed
    request = preflight.ApplyRequest(plan, settings, wish.as_planned, renames, controlled=wish.controlled)
    return _Host(wish, built, request, follow, endpoints)


def _check_host(wish: Wish, plan: Plan, document: Document, built: Fleet, devices: Mapping[str, str]) -> None:
    """Raise InputError for what this host's other fleets, or its model repository, do not allow."""
    present = launcher_registry.servers_of_host()
    preflight.refuse_namesake(present, built.files)
    held = preflight.shares_of_others(present, wish.fleet)
    accepted = Allowance.OVERCOMMIT in wish.allowed
    preflight.check_shares(plan, document, devices, held, say, accepted=accepted)
    planned = sorted({placement.model for _, _, placement in plan.placements()})
    models = with_composing(wish.repository, planned)
    completer = wiring.completer(built.launcher, plan.options, wish.load_timeout_s)
    complete_or_refuse(completer, wish.repository, models)
    check_models(plan, wish.repository, wish.output, built.launcher, say)


@dataclass(frozen=True, slots=True)
class _Host:
    """A fleet whose gateway and controller are this host's."""

    wish: Wish
    built: Fleet
    request: preflight.ApplyRequest
    follow: Following
    endpoints: GatewayConfig

    def agreed(self) -> bool:
        steps = describe(self.built.preview(self.request))
        print("\n".join(steps) or terms_line(self.built.changed_terms(self.request.plan)))
        return not steps or options.agreed("Go on?")

    def preview(self, *, json: bool) -> bool:
        actions, changed = self.built.preview(self.request), self.built.changed_terms(self.request.plan)
        steps, gateway = describe(actions), self._gateway()
        shown = tuple(commands(actions, self.built.launcher))
        lines = [*steps, *(f"gateway: {one.path} {one.before} -> {one.after}" for one in gateway)]
        text = "\n\n".join(("\n".join(lines) or terms_line(changed), *shown))
        document = {"fleet": self.wish.fleet, "steps": steps, "gateway": gateway, "terms": changed}
        answer({**document, "commands": shown}, text, json=json)
        return bool(steps or gateway or changed)

    def _gateway(self) -> tuple[Difference, ...]:
        """Return what the gateway does otherwise now; a new fleet has no before."""
        before = self.built.files.settings()
        return () if before is None else differences(before.endpoints, self.endpoints)

    def change(self, *, json: bool) -> None:
        say(f"launching with {self.built.launcher.name}")
        left = controller_process.left_running if self.wish.controlled else controller_process.left_alone
        with left(self.built.files):
            outcome = self.built.apply(self.request)
            preflight.keep_follow(self.built.files, self.request.plan, self.follow, self.wish.profiles)
        preflight.warn_of_old_servers(outcome.servers, self.built)
        at = self.endpoints
        behind = (
            f"fleet {self.wish.fleet}: {len(outcome.servers)} servers behind "
            f"http://{at.host}:{at.http_port} and grpc {at.host}:{at.grpc_port}"
        )
        listening = {"host": at.host, "http": at.http_port, "grpc": at.grpc_port}
        done = {**committed.converged(self.wish.fleet, outcome), "listening": listening}
        answer(done, behind if outcome.actions else terms_line(outcome.terms), json=json)
