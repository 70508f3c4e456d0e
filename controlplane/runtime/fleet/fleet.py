"""Apply, roll back, redirect by hand and destroy a fleet: plan -> rendered files -> actions -> servers.

One command at a time works on a fleet: a lock file says so, and the kernel frees it when its holder dies.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from controlplane.control.converge.actions import (
    Action,
    Actual,
    Commit,
    Drain,
    Remove,
    SetBatches,
    Start,
    Stop,
    converge,
    destroy,
)
from controlplane.control.converge.desired import Desired, NamedRoute, as_moved, desired_fleet, moved
from controlplane.control.converge.redirect import companions, moves, redirected
from controlplane.control.order import order_of
from controlplane.domain.errors import (
    EngineError,
    GatewayError,
    InputError,
    LibraryIgnored,
    TrisectError,
)
from controlplane.domain.fleet import GatewayConfig, Server, ServerState
from controlplane.domain.observation import Event
from controlplane.domain.plan import Plan
from controlplane.files import waiting
from controlplane.files.fleets import FleetFiles, FleetSettings, this_host
from controlplane.files.mistakes import nearest
from controlplane.files.pinned import Applied, PinRules, Record
from controlplane.files.plans import plan_hash
from controlplane.files.rendered import forget_rendered
from controlplane.planning.replan.differences import Ending, TermChange, endings, terms
from controlplane.ports import Clock, Gateway, Launcher
from controlplane.report.words import counted
from controlplane.runtime.fleet.execute import Executor, Limits, Say, named, observe
from controlplane.runtime.fleet.history import History
from controlplane.runtime.fleet.preflight import ApplyRequest, check_endings


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run: its actions (none: nothing to do) and the servers that run now.

    `terms` are changed SLOs and rates of workloads, which need no action.
    """

    actions: tuple[Action, ...]
    servers: tuple[Server, ...]
    terms: tuple[TermChange, ...] = ()


@contextlib.contextmanager
def locked(files: FleetFiles, *, patience_s: float = 5.0) -> Iterator[None]:
    """Lock the fleet. Raises FleetBusy where another command has the lock for longer than `patience_s`.

    A controller holds it for moments, a command until it has ended. EngineError: the disk refuses.
    InputError: the fleet is another host's.
    """
    try:
        files.make()
    except OSError as error:
        raise EngineError(f"{files.lock}: cannot be held: {error.strerror}") from error
    busy = f"another command is working on fleet {files.fleet!r}; wait for it to end"
    with waiting.locked(files.lock, patience_s, busy):
        files.check_host(this_host())
        yield


@dataclass(frozen=True, slots=True)
class Fleet:
    """One fleet with its launcher and gateway."""

    files: FleetFiles
    launcher: Launcher
    gateway: Gateway
    clock: Clock
    say: Say
    limits: Limits = field(default_factory=Limits)
    pinning: PinRules = field(default_factory=PinRules)

    @property
    def name(self) -> str:
        """The fleet's name."""
        return self.files.fleet

    def desired(self, plan: Plan, settings: FleetSettings) -> Desired:
        """Return the fleet of a plan that was applied, with the models that were pinned then."""
        record = self.files.record()
        applied = record.of_plan(plan_hash(plan))
        if applied is None:  # another leader in the cluster applied it
            applied, desired = self.planned(plan, settings)
            self.files.write_record(replace(record, applied=applied))
            return desired
        return self.planned(plan, settings, applied)[1]

    def planned(
        self, plan: Plan, settings: FleetSettings, applied: Applied | None = None, *, write: bool = True
    ) -> tuple[Applied, Desired]:
        """Return a plan's models and its fleet, rendered on disk; without `write`, only with the paths.

        The models are those of `applied`; without it those that are in the repository now, pinned.
        """
        # Imports protobuf and numpy, which commands that only read do not need.
        from controlplane.runtime.fleet.rendering import Place, pinned_plan, rendered_plan

        place = Place(Path(settings.output), self.name, write, settings.batch_library)
        if applied is None:
            known = self.files.record().known
            applied, rendered = pinned_plan(plan, Path(settings.repository), place, self.pinning, known)
        else:
            rendered = rendered_plan(plan, applied, place)
        return applied, desired_fleet(
            plan,
            fleet=self.name,
            plan_hash=applied.plan,
            rendered=rendered,
            devices=settings.devices,
            fleet_wide_calls=settings.endpoints.fleet_wide_calls,
        )

    def open_gateway(self, plan: Plan, endpoints: GatewayConfig, *, moves: int = 0) -> None:
        """Start the gateway, with gates also where only the plan relies on them; see `Gateway.start`."""
        gates = endpoints.late_binding or plan.ordered
        self.gateway.start(replace(endpoints, late_binding=gates), endpoints=moves)

    def preview(self, request: ApplyRequest) -> tuple[Action, ...]:
        """Return the actions of `apply` without writing anything; say which endpoints would end."""
        before = self.files.plan()
        check_endings(self._endings(before, request.plan), self.say, accepted=True)
        _, desired = self.planned(request.plan, request.settings, request.models, write=False)
        actual = observe(self.launcher, self.gateway, self.name)
        return converge(self._wanted(request, before, desired, actual), actual)

    def changed_terms(self, plan: Plan) -> tuple[TermChange, ...]:
        """Return the terms of workloads that differ from those of the plan applied last."""
        before = self.files.plan()
        return terms(before, plan) if before is not None else ()

    def apply(self, request: ApplyRequest) -> Outcome:
        """Make the fleet match a plan. Other workloads' traffic continues.

        Raises EngineError, GatewayError, and InputError; before any change InputError where a workload stays
        and its endpoint ends without consent, and EngineError where another plan runs than `made_from`.
        """
        with locked(self.files):
            try:
                return self._applied(request)
            except LibraryIgnored as error:
                # Servers that have it would be replaced, which only the user may want.
                if any(server.spec.batches for server in self.launcher.servers(self.name)):
                    raise
                self.say(f"warning: {error}: batches are fixed")
            return self._applied(replace(request, settings=replace(request.settings, batch_library=None)))

    def _applied(self, request: ApplyRequest) -> Outcome:
        from controlplane.runtime.fleet.rendering import announce_output, forget_unused  # as `planned`

        plan, settings, models = request.plan, request.settings, request.models
        before, changed_terms = self.files.plan(), self.changed_terms(plan)
        with self._no_trace_of_a_refusal():
            if request.made_from is not None:
                models = self._models_of(request.made_from, plan)
            check_endings(self._endings(before, plan), self.say, accepted=request.rename_endpoints)
            announce_output(self.files, settings.output)
            # Before any start: a plan that cannot be rendered is refused.
            applied, desired = self.planned(plan, settings, models)
            endpoints = {placement.endpoint for _, _, placement in plan.placements()}
            self.open_gateway(plan, settings.endpoints, moves=len(endpoints))
            self.arrange(plan, settings.endpoints)
        actual = observe(self.launcher, self.gateway, self.name)
        actions = converge(self._wanted(request, before, desired, actual), actual)
        settings = self._executed(request, before, applied, actions, actual)
        servers = self.launcher.servers(self.name)
        forget_unused(self.files, settings, (*desired.servers.values(), *(s.spec for s in servers)))
        return Outcome(actions, servers, changed_terms)

    def previous(self) -> ApplyRequest:
        """Return what brings back the previous plan, with the models of then.

        Raises InputError where there is none.
        """
        settings, plan = self.files.settings(), self.files.previous_plan()
        if settings is None or plan is None:
            raise InputError(f"fleet {self.name!r} has no plan to go back to")
        models = self.files.record().previous
        # None where another leader in the cluster applied it.
        models = models if models and models.plan == plan_hash(plan) else None
        if plan.serve is not None:
            load_s = plan.serve.load_timeout_s
            settings = replace(settings, endpoints=plan.serve.gateway, load_timeout_s=load_s)
        # These endpoints were served before, and a rollback consents to them; the ones that end are reported.
        return ApplyRequest(plan, settings, rename_endpoints=True, verb="rollback", models=models)

    def arrange(self, plan: Plan, endpoints: GatewayConfig) -> None:
        """Have requests wait for their partitions in the order of the plan's times."""
        self.gateway.arrange(order_of(plan, endpoints.overtake_ms if endpoints.late_binding else None))

    def _executed(
        self,
        request: ApplyRequest,
        before: Plan | None,
        applied: Applied,
        actions: tuple[Action, ...],
        actual: Actual,
    ) -> FleetSettings:
        """Run the actions, and write what is applied by them; return the settings that hold now."""
        plan, known, record = request.plan, self.files.settings(), self.files.record()
        settings = request.settings.after(known)
        if not actions and before == plan and known == settings:
            if applied != record.applied:  # other files of the same content
                self.files.write_record(replace(record, applied=applied))
            return settings
        # Before any start: after a failure, `status` and `destroy` need the settings.
        self.files.write_settings(settings)
        leaving = tuple(a for a in actions if isinstance(a, Drain | Stop))
        try:
            Executor(self).run(actions[: len(actions) - len(leaving)], actual)
            # Before the drains, which take long: after a kill meanwhile, a controller that read the previous
            # plan would route by it.
            self._write_applied(plan, applied, before)
            self.run(leaving, actual, controlled=request.controlled)
        except TrisectError as error:
            reason = f"plan {applied.plan} {request.cause}, failed: {error}"
            self.note("warning", request.verb, self.name, reason)
            raise
        self.note("info", request.verb, self.name, summary_of(plan, before, actions, request.cause))
        return settings

    def destroy(self) -> Outcome:
        """Drain and stop all servers with this fleet's labels and the gateway, and remove its files."""
        with locked(self.files):
            settings = self.files.settings()
            actual = observe(self.launcher, self.gateway, self.name)
            actions = destroy(actual)
            try:
                self.run(actions, actual)
            except GatewayError as error:
                self.say(f"warning: {error}; the servers are stopped anyway")
                self.run(tuple(a for a in actions if isinstance(a, Remove | Stop)), actual)
            self.gateway.stop()
            self.launcher.sweep(self.name)
            for output in () if settings is None else (settings.output, *settings.former_outputs):
                forget_rendered(Path(output), self.name, ())
        shutil.rmtree(self.files.directory, ignore_errors=True)
        return Outcome(actions, ())

    @contextlib.contextmanager
    def _no_trace_of_a_refusal(self) -> Iterator[None]:
        """Remove the fleet's directory where its first command is refused before anything runs."""
        first = set(self.files.directory.iterdir()) <= {self.files.lock}
        try:
            yield
        except TrisectError:
            if first:
                # Replicas in a cluster keep no files here, and may serve what an earlier leader routed.
                if self.files.gateway.exists():
                    self.gateway.stop()
                shutil.rmtree(self.files.directory, ignore_errors=True)
            raise

    def _models_of(self, running: str, plan: Plan) -> Applied | None:
        """Return the pinned models of the plan with this hash for another plan that was made from it.

        None where that has further models. Raises EngineError where another plan runs by now.
        """
        present = self.files.plan()
        found = "none" if present is None else plan_hash(present)
        if found != running:
            raise EngineError(
                f"the plan was made from plan {running}, and {found} runs by now; nothing was touched: "
                "another command changed it"
            )
        pinned = self.files.record().applied
        models = {placement.model for _, _, placement in plan.placements()}
        if pinned is None or not models <= pinned.models.keys():
            return None
        kept = {model: pinned.models[model] for model in sorted(models)}
        return replace(pinned, plan=plan_hash(plan), models=kept)

    def _write_applied(self, plan: Plan, applied: Applied, before: Plan | None) -> None:
        """Record a plan and its models, and what a rollback brings back where one of the two is new."""
        record = self.files.record()
        code = None if before is None else plan_hash(before)
        former = None if code is None else record.of_plan(code)
        changed = code not in (None, applied.plan) or (former is not None and not applied.same_as(former))
        # A plan of an earlier version has no section: what its fleet is served by is written down now.
        changed |= before is not None and before.serve not in (None, plan.serve)
        self.files.write_record(Record(applied, former if changed else record.previous))
        self.files.write_plans(plan, before if changed else None)

    def _endings(self, before: Plan | None, plan: Plan) -> tuple[Ending, ...]:
        """Return the served endpoints that a plan ends."""
        ended = endings(before, plan) if before is not None else ()
        served = set(self.gateway.routes()) if ended else set()
        return tuple(e for e in ended if e.endpoint in served)

    def _wanted(
        self, request: ApplyRequest, before: Plan | None, desired: Desired, actual: Actual
    ) -> Desired:
        """Return the fleet that is wanted now; report which redirects stay and which are undone."""
        running = [s.spec for s in actual.servers if s.state is ServerState.RUNNING]
        same_plan = before is not None and plan_hash(before) == plan_hash(request.plan)
        keep = same_plan and not request.as_planned
        for one in moved(desired, running, actual.routes):
            has = f"{one.partition} was redirected to {one.present.percent:g} % of {one.present.device}"
            planned = f"{one.planned.percent:g} % of {one.planned.device}"
            same = (one.present.percent, one.present.device) == (one.planned.percent, one.planned.device)
            back = "" if same else f"; `--as-planned` brings back the plan's {planned}"
            self.say(
                f"{has} and stays there{back}" if keep else f"{has}: that is undone, {planned} is planned"
            )
        return as_moved(desired, running, actual.routes) if keep else desired

    def run(self, actions: tuple[Action, ...], actual: Actual, *, controlled: bool = False) -> None:
        """Run actions to their end. Raises EngineError, GatewayError."""
        Executor(self, controlled).run(actions, actual)
        if any(isinstance(a, Stop) for a in actions):
            self.launcher.sweep(self.name)
        self.journal("converged")

    @property
    def waits(self) -> Limits:
        """The longest waits, with the fleet's own for a start."""
        settings = self.files.settings()
        return self.limits if settings is None else replace(self.limits, start_s=settings.load_timeout_s)

    def journal(self, event: str, **details: Any) -> None:
        """Append an event with the time. A full disk loses it, so that a redirect does not fail."""
        with contextlib.suppress(EngineError):
            self.files.append_journal(self.clock.wall(), event, details)

    def note(self, level: str, kind: str, subject: str, reason: str) -> None:
        """Write an event to the history."""
        History(self.files.history).write(Event(self.clock.wall(), level, kind, subject, reason))


def summary_of(plan: Plan, before: Plan | None, actions: Sequence[Action], cause: str) -> str:
    """Summarise an apply for the history."""
    started = sum(isinstance(a, Start) for a in actions)
    stopped = sum(isinstance(a, Stop) for a in actions)
    now = {partition.id for _, partition in plan.partitions()}
    gone = sorted({p.id for _, p in before.partitions()} - now) if before is not None else []
    ended = f"; ended: {', '.join(gone)}" if gone else ""
    totals = f"{counted(started, 'server')} started, {stopped} stopped, {counted(len(now), 'partition')}"
    changed = sum(isinstance(a, SetBatches) for a in actions)
    live = f"; other batches on {counted(changed, 'server')}" if changed else ""
    return f"plan {plan_hash(plan)} {cause}: {totals}{live}{ended}"


def redirect(fleet: Fleet, workloads: Sequence[str], settings: FleetSettings) -> dict[str, NamedRoute]:
    """Redirect workloads to their shadows, or back, in one commit; return their new routes.

    A partition moves as a whole, with all its workloads. Raises InputError for an unknown workload or
    one without a hot shadow.
    """
    with locked(fleet.files):
        plan = fleet.files.plan()
        if plan is None:
            raise InputError(f"fleet {fleet.name!r} has no plan")
        endpoints = {p.name: p.endpoint for _, _, p in plan.placements()}
        for workload in workloads:
            if workload not in endpoints:
                raise InputError(
                    f"is no workload of fleet {fleet.name!r}{nearest(workload, endpoints)}", field=workload
                )
        actual = observe(fleet.launcher, fleet.gateway, fleet.name)
        running = [s.spec for s in actual.servers if s.state is ServerState.RUNNING]
        # The routes as they are: a pool that lost a server keeps the others.
        current = named(fleet.gateway.routes())
        present = as_moved(fleet.desired(plan, settings), running, current)
        asked = [endpoints[w] for w in workloads]
        if others := companions(present, asked):
            fleet.say(f"{', '.join(others)}: in one partition with {', '.join(asked)}, so redirected too")
        turned = [*asked, *others]
        routes = redirected(present, current, turned, {spec.name for spec in running})
        fleet.run((Commit(routes),), actual)
        partitions = {s.name: s.spec.labels.partition for s in actual.servers}
        for partition, source, target in moves(current, routes, turned, partitions):
            fleet.note("info", "redirect", partition, f"{source} -> {target}: by hand")
        return {e: routes[e] for e in turned}
