"""Where `ctl apply` brings a plan, this host or controllers in a cluster, and what it prints of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from controlplane.cli import cluster, launcher_registry, options, wiring
from controlplane.cli.options import Allowance
from controlplane.cli.output import Verbosity, answer, chosen, print_json, say
from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Cluster
from controlplane.domain.observation import FleetReport
from controlplane.domain.plan import Plan
from controlplane.domain.serving import Difference, LauncherName, Serving, Tls, differences
from controlplane.domain.settings import ServeSettings
from controlplane.files.documents import Document
from controlplane.files.fleets import FleetFiles, FleetSettings
from controlplane.files.following import Following
from controlplane.files.plans import fleet_manifest, read_plan
from controlplane.files.set_values import with_values
from controlplane.gateway.security.certificate import is_loopback
from controlplane.render.source import with_composing
from controlplane.report.tables.change_table import terms_line
from controlplane.runtime.fleet import controller_process, preflight
from controlplane.runtime.fleet.execute import commands, describe
from controlplane.runtime.fleet.fleet import Fleet, Outcome
from controlplane.runtime.fleet.in_cluster import FleetInCluster
from controlplane.runtime.fleet.rendering import check_models
from controlplane.runtime.jobs.completing import complete_or_refuse
from controlplane.runtime.jobs.plan import check_spare_core


@dataclass(frozen=True, slots=True)
class Wish:
    """What a command line says of a fleet.

    `given` are values in place of the section's, each KEY=VALUE. `confirmed`: a person will see the steps
    first. `yes`: looser access is accepted unseen.
    """

    plan: Path
    fleet: str
    repository: Path
    profiles: Path
    output: Path
    given: tuple[str, ...] = ()
    allowed: frozenset[Allowance] = frozenset()
    require_quota: bool = False
    as_planned: bool = False
    controlled: bool = True
    confirmed: bool = False
    yes: bool = False


def target(wish: Wish) -> HostFleet | ControllersFleet:
    """Return where a plan goes. Raises InputError and EngineError for what may not be applied."""
    plan, document = read_plan(wish.plan)
    files = wiring.fleet_files(wish.fleet)
    section = section_of(plan, files, wish.given)
    chosen = wiring.chosen_launcher(files, section.launcher) or options.launcher_of_environment()
    if Allowance.VIOLATIONS not in wish.allowed:
        preflight.check_promises(plan, document, wish.profiles, files, say)
    if chosen is not LauncherName.KUBERNETES:
        for key, value in {"context": section.context, "namespace": section.namespace}.items():
            if value is not None:
                raise InputError("is for the launcher kubernetes", field=f"serve.{key}")
        cores = len(os.sched_getaffinity(0))
        check_spare_core(plan, document, cores, say, accepted=Allowance.ALL_CORES in wish.allowed)
        return _of_host(wish, replace(plan, serve=section), document, chosen)
    # What the check of spare cores would count are devices of this host.
    if section.late_binding:
        problem = "is for one gateway: of several in a cluster each would order only its own requests"
        raise InputError(problem, field="serve.late_binding")
    place = wiring.chosen_cluster(files, Cluster(section.context, section.namespace))
    kept = cluster.fleet_of_controllers(files, place)
    if kept is None:
        if section.follow_load:
            problem = "on Kubernetes needs gateway and controllers in the cluster (deploy/kubernetes)"
            raise InputError(problem, field="serve.follow_load")
        return _of_host(wish, replace(plan, serve=section), document, chosen)
    installed = "is set where gateway and controllers of the cluster are installed"
    allowed = Serving(
        section.launcher,
        section.context,
        section.namespace,
        follow_load=section.follow_load,
        load_timeout_s=section.load_timeout_s,
    )
    for one in differences(allowed, section):
        raise InputError(installed, field=f"serve.{one.path}")
    given = {"--as-planned": wish.as_planned or None, "--no-controller": not wish.controlled or None}
    options.refuse(installed, given)
    return ControllersFleet(wish, replace(plan, serve=section) if wish.given else plan, kept, place)


def section_of(plan: Plan, files: FleetFiles, given: Sequence[str]) -> Serving:
    """Return how the fleet is to be served: as the plan's section and the command line say.

    A plan of an earlier version, which has no section, cannot say it: its fleet is served as it is.
    """
    wanted = plan.serve or files.section() or Serving()
    section = with_values(ServeSettings(wanted), given).serve
    if section.traces:
        import_module("opentelemetry.exporter.otlp.proto.http")  # of an extra
    if (tls := section.tls) is None:
        return section
    client_ca = None if tls.client_ca is None else str(Path(tls.client_ca).absolute())
    return replace(section, tls=Tls(str(Path(tls.cert).absolute()), str(Path(tls.key).absolute()), client_ca))


@dataclass(frozen=True, slots=True)
class ControllersFleet:
    """A fleet whose controllers run in the cluster, where its Fleet object brings the plan."""

    wish: Wish
    plan: Plan
    kept: FleetInCluster
    place: Cluster

    def preview(self, *, json: bool) -> bool:
        """Print the object; return whether it would change."""
        allowed = Allowance.VIOLATIONS in self.wish.allowed
        show_manifest(self.wish.fleet, self.plan, allow_violations=allowed, json=json)
        return self.kept.files.plan() != self.plan

    def agreed(self) -> bool:
        """Return True: its controllers find the steps."""
        return True

    def change(self, *, json: bool) -> None:
        """Write the object and print what the controllers report."""
        repository, output = str(self.wish.repository.resolve()), str(self.wish.output.resolve())
        where = Cluster(self.place.context, self.place.namespace, installed=True)
        report = self.kept.apply(
            self.plan,
            FleetSettings("kubernetes", repository, output, {}, cluster=where),  # devices: in the object
            allow_violations=Allowance.VIOLATIONS in self.wish.allowed,
            rename_endpoints=Allowance.RENAMES in self.wish.allowed,
            profiles=self.wish.profiles,
        )
        show_report(self.wish.fleet, report, json=json)


def _of_host(wish: Wish, plan: Plan, document: Document, chosen: LauncherName | None) -> HostFleet:
    files, section = wiring.fleet_files(wish.fleet), plan.serve or Serving()
    follow = preflight.checked_follow(files, plan, say, all_cores=Allowance.ALL_CORES in wish.allowed)
    place = wiring.chosen_cluster(files, Cluster(section.context, section.namespace))
    built = wiring.fleet(wish.fleet, launcher_name=chosen, cluster=place)
    section = replace(section, context=place.context, namespace=place.namespace)
    settings = preflight.settings(
        plan, built, repository=wish.repository, output=wish.output, section=section
    )
    plan = replace(plan, serve=settings.section(follow))  # what the fleet shows from now on
    if built.launcher.inventory() is None:
        _check_host(wish, plan, document, built, settings)
    preflight.check_quota(built.launcher, say, required=wish.require_quota)
    renames = Allowance.RENAMES in wish.allowed or wish.confirmed
    request = preflight.ApplyRequest(plan, settings, wish.as_planned, renames, controlled=wish.controlled)
    return HostFleet(wish, built, request, follow)


def _check_host(wish: Wish, plan: Plan, document: Document, built: Fleet, settings: FleetSettings) -> None:
    """Raise InputError for what this host's other fleets, or its model repository, do not allow."""
    present = launcher_registry.servers_of_host()
    preflight.refuse_namesake(present, built.files)
    held = preflight.shares_of_others(present, wish.fleet)
    accepted = Allowance.OVERCOMMIT in wish.allowed
    preflight.check_shares(plan, document, settings.devices, held, say, accepted=accepted)
    planned = sorted({placement.model for _, _, placement in plan.placements()})
    models = with_composing(wish.repository, planned)
    completer = wiring.completer(built.launcher, plan.options, settings.load_timeout_s)
    complete_or_refuse(completer, wish.repository, models)
    check_models(plan, wish.repository, wish.output, built.launcher, say)


@dataclass(frozen=True, slots=True)
class HostFleet:
    """A fleet whose gateway and controller are this host's, and the plan that it is to run."""

    wish: Wish
    built: Fleet
    request: preflight.ApplyRequest
    follow: Following

    def agreed(self) -> bool:
        """Print the steps and ask whether to go on, where there are any."""
        steps = [*describe(self.built.preview(self.request)), *changed_lines(self._changed())]
        print("\n".join(steps) or terms_line(self.built.changed_terms(self.request.plan)))
        return not steps or options.agreed("Go on?")

    def preview(self, *, json: bool) -> bool:
        """Print what would change; return whether anything would."""
        actions, terms = self.built.preview(self.request), self.built.changed_terms(self.request.plan)
        steps, changed = describe(actions), self._changed()
        shown = tuple(commands(actions, self.built.launcher))
        long = shown if chosen() is Verbosity.VERBOSE else ()
        lines = [*steps, *changed_lines(changed)]
        text = "\n\n".join(("\n".join(lines) or terms_line(terms), *long))
        document = {"fleet": self.wish.fleet, "steps": steps, "serve": changed, "terms": terms}
        answer({**document, "commands": shown}, text, json=json)
        return bool(steps or changed or terms)

    def _changed(self) -> tuple[Difference, ...]:
        """Return how the fleet is served otherwise now; a new one has no before."""
        before = self.built.files.section()
        wanted = self.request.settings.section(self.follow)
        return () if before is None else differences(before, wanted)

    def change(self, *, json: bool) -> None:
        """Make the fleet match the plan and print the result."""
        if not self.wish.confirmed:
            say_or_refuse(self._changed(), accepted=self.wish.yes)
        say(f"launching with {self.built.launcher.name}")
        left = controller_process.left_running if self.wish.controlled else controller_process.left_alone
        with left(self.built.files):
            outcome = self.built.apply(self.request)
            preflight.keep_follow(self.built.files, self.request.plan, self.follow, self.wish.profiles)
        preflight.warn_of_old_servers(outcome.servers, self.built)
        at = self.request.settings.endpoints
        scheme = "https" if at.protection.certificate else "http"
        behind = (
            f"fleet {self.wish.fleet}: {len(outcome.servers)} servers behind "
            f"{scheme}://{at.host}:{at.http_port} and grpc {at.host}:{at.grpc_port}"
        )
        listening = {"host": at.host, "http": at.http_port, "grpc": at.grpc_port}
        done = {**converged(self.wish.fleet, outcome), "listening": listening}
        answer(done, behind if outcome.actions else terms_line(outcome.terms), json=json)


def changed_lines(changed: Iterable[Difference]) -> list[str]:
    """Return a line for each change."""
    return [f"serve: {one.path} {one.before} -> {one.after}" for one in changed]


def say_or_refuse(changed: Iterable[Difference], *, accepted: bool) -> None:
    """Say each change, where no person was asked.

    Raises InputError, unless it is `accepted`, where more clients could connect, or calls would no longer be
    written down.
    """
    changed = tuple(changed)
    looser = [one for one in changed if _is_looser(one)]
    if looser and not accepted:
        raise InputError(f"is needed for looser access ({'; '.join(changed_lines(looser))})", field="--yes")
    for line in changed_lines(changed):
        say(line)


def _is_looser(one: Difference) -> bool:
    match one.path:
        case "tls.cert" | "tls.client_ca":
            return one.after is None
        case "access.tokens" | "access.audit":
            return not one.after
        case "access.plain_text":
            return bool(one.after)
        case "listen.host":
            return not is_loopback(str(one.after))
        case _:
            return False


def show_manifest(fleet: str, plan: Plan, *, allow_violations: bool, json: bool) -> None:
    """Print the object of a plan."""
    manifest = fleet_manifest(fleet, plan, allow_violations=allow_violations)
    if json:
        print_json({"fleet": fleet, "manifest": manifest})
    else:
        import yaml

        print(yaml.safe_dump(manifest, sort_keys=False, width=110), end="")


def show_report(fleet: str, report: FleetReport, *, json: bool) -> None:
    """Print the controllers' report."""
    told = {"generation": report.generation, "plan": report.plan, "partitions": report.partitions}
    text = f"fleet {fleet}: generation {report.generation} is applied: {report.message}"
    answer({"fleet": fleet, **told, "message": report.message}, text, json=json)


def converged(fleet: str, outcome: Outcome) -> dict[str, Any]:
    """Return what a verb did: its steps, the changed terms of workloads, and the servers that run now."""
    return {
        "fleet": fleet,
        "steps": list(describe(outcome.actions)),
        "terms": outcome.terms,
        "servers": [server.name for server in outcome.servers],
    }
