"""Apply, roll back and destroy a fleet: plan -> rendered files -> converge's actions -> running servers.

One command at a time works on a fleet: a lock file says so, and the kernel frees it when its holder dies.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import filelock

from controlplane.control.converge.actions import (
    Action,
    Actual,
    Commit,
    Drain,
    Remove,
    Start,
    Stop,
    converge,
    destroy,
)
from controlplane.control.converge.desired import Desired, NamedRoute, as_moved, desired_fleet, moved
from controlplane.control.converge.redirect import companions, moves, redirected
from controlplane.control.order import order_of
from controlplane.domain.errors import EngineError, FleetBusy, GatewayError, InputError, TrisectError
from controlplane.domain.fleet import GatewayConfig, Server, ServerSpec, ServerState
from controlplane.domain.observation import Event
from controlplane.domain.plan import Plan
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
from controlplane.runtime.fleet.preflight import check_endings


class FleetJournal:
    """`execute.Journal` in the fleet's files."""

    def __init__(self, files: FleetFiles, clock: Clock) -> None:
        self._files = files
        self._clock = clock

    def write(self, event: str, **details: Any) -> None:
        """Append one event with the time. A full disk loses it, so that a redirect does not fail."""
        with contextlib.suppress(EngineError):
            self._files.append_journal(self._clock.wall(), event, details)


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
    lock = filelock.FileLock(files.lock, timeout=patience_s)
    try:
        files.make()
        lock.acquire()
    except filelock.Timeout:
        raise FleetBusy(f"another command is working on fleet {files.fleet!r}; wait for it to end") from None
    except OSError as error:
        raise EngineError(f"{files.lock}: cannot be held: {error.strerror}") from error
    try:
        files.check_host(this_host())
        yield
    finally:
        lock.release()


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
        if applied is None:  # by a version that pinned nothing, or by another leader in the cluster
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

        place = Place(Path(settings.output), self.name, write)
        if applied is None:
            known = self.files.record().known
            applied, rendered = pinned_plan(plan, Path(settings.repository), place, self.pinning, known)
        else:
            rendered = rendered_plan(plan, applied, place)
        return applied, desired_fleet(
            plan,
            fleet=self.name,
            plan_hash=plan_hash(plan),
            rendered=rendered,
            devices=settings.devices,
            fleet_wide_calls=settings.endpoints.fleet_wide_calls,
        )

    def open_gateway(self, plan: Plan, endpoints: GatewayConfig, *, moves: int = 0) -> None:
        """Start the gateway, with gates also where only the plan relies on them; see `Gateway.start`."""
        gates = endpoints.late_binding or plan.ordered
        self.gateway.start(replace(endpoints, late_binding=gates), endpoints=moves)

    def preview(
        self,
        plan: Plan,
        settings: FleetSettings,
        *,
        as_planned: bool = False,
        models: Applied | None = None,
    ) -> tuple[Action, ...]:
        """Return the actions of `apply` without writing anything; say which endpoints would end.

        `models` are pinned ones; without them those that are in the repository now.
        """
        check_endings(self._endings(plan), self.say, accepted=True)
        _, desired = self.planned(plan, settings, models, write=False)
        actual = observe(self.launcher, self.gateway, self.name)
        return converge(self._wanted(plan, desired, actual, as_planned), actual)

    def changed_terms(self, plan: Plan) -> tuple[TermChange, ...]:
        """Return the terms of workloads that differ from those of the plan applied last."""
        before = self.files.plan()
        return terms(before, plan) if before is not None else ()

    def apply(
        self,
        plan: Plan,
        settings: FleetSettings,
        *,
        as_planned: bool = False,
        rename_endpoints: bool = False,
        cause: str = "by hand",
        made_from: str | None = None,
    ) -> Outcome:
        """Make the fleet match a plan; `cause` is for the history.

        `made_from` is the hash of the plan that must still run, and whose models the new plan serves:
        EngineError, before any change, where another one does.

        Partitions that were redirected since this plan was applied stay where they are, unless `as_planned`.
        Raises EngineError, GatewayError, and InputError; other workloads' traffic continues. InputError,
        before any change, where a workload stays and its endpoint ends, unless `rename_endpoints`.
        """
        return self._apply(
            plan,
            settings,
            as_planned=as_planned,
            verb="apply",
            rename_endpoints=rename_endpoints,
            cause=cause,
            made_from=made_from,
        )

    def _apply(
        self,
        plan: Plan,
        settings: FleetSettings,
        *,
        as_planned: bool,
        verb: str,
        rename_endpoints: bool,
        cause: str = "by hand",
        made_from: str | None = None,
        models: Applied | None = None,
    ) -> Outcome:
        with locked(self.files):
            with self._no_trace_of_a_refusal():
                self._check_made_from(made_from)
                if made_from is not None:
                    models = self._models_of_present(plan)
                check_endings(self._endings(plan), self.say, accepted=rename_endpoints)
                self._announce_output(settings.output)
                # Before any start: a plan that cannot be rendered is refused.
                applied, desired = self.planned(plan, settings, models)
                self.open_gateway(
                    plan, settings.endpoints, moves=len({p.endpoint for _, _, p in plan.placements()})
                )
                binds_late, overtake_ms = settings.endpoints.late_binding, settings.endpoints.overtake_ms
                self.gateway.arrange(order_of(plan, overtake_ms if binds_late else None))
            actual = observe(self.launcher, self.gateway, self.name)
            actions = converge(self._wanted(plan, desired, actual, as_planned), actual)
            before, known, changed_terms = self.files.plan(), self.files.settings(), self.changed_terms(plan)
            settings = settings.after(known)
            record = self.files.record()
            if actions or before != plan or known != settings:
                # Before any start: after a failure, `status` and `destroy` need the settings.
                self.files.write_settings(settings)
                leaving = tuple(a for a in actions if isinstance(a, Drain | Stop))
                try:
                    self._execute(actions[: len(actions) - len(leaving)], actual)
                    # Before the drains, which take long: after a kill meanwhile, a controller that read the
                    # previous plan would route by it.
                    self._write_applied(plan, applied, before)
                    self._run(leaving, actual)
                except TrisectError as error:
                    self._tell("warning", verb, self.name, f"plan {plan_hash(plan)} {cause}, failed: {error}")
                    raise
                self._tell("info", verb, self.name, summary_of(plan, before, actions, cause))
            elif applied != record.applied:  # other files of the same content
                self.files.write_record(replace(record, applied=applied))
            servers = self.launcher.servers(self.name)
            self._forget_rendered(settings, (*desired.servers.values(), *(s.spec for s in servers)))
            return Outcome(actions, servers, changed_terms)

    def preview_rollback(self) -> tuple[Action, ...]:
        """Return the actions of `rollback`. Raises InputError where there is no previous plan."""
        previous, settings, models = self._before()
        return self.preview(previous, settings, models=models)

    def rollback(self) -> Outcome:
        """Apply the previous plan with the models of then. Raises InputError where there is none."""
        previous, settings, models = self._before()
        # These endpoints were served before, and a rollback consents to them; the ones that end are reported.
        return self._apply(
            previous, settings, as_planned=False, verb="rollback", rename_endpoints=True, models=models
        )

    def _before(self) -> tuple[Plan, FleetSettings, Applied | None]:
        settings, previous = self.files.settings(), self.files.previous_plan()
        if settings is None or previous is None:
            raise InputError(f"fleet {self.name!r} has no plan to go back to")
        models = self.files.record().previous
        # None where a version that pinned nothing applied it.
        return previous, settings, models if models and models.plan == plan_hash(previous) else None

    def redirect(self, workloads: Sequence[str], settings: FleetSettings) -> dict[str, NamedRoute]:
        """Redirect workloads to their shadows, or back, in one commit; return their new routes.

        A partition moves as a whole, with all its workloads. Raises InputError for an unknown workload or
        one without a hot shadow.
        """
        with locked(self.files):
            plan = self.files.plan()
            if plan is None:
                raise InputError(f"fleet {self.name!r} has no plan")
            endpoints = {p.name: p.endpoint for _, _, p in plan.placements()}
            for workload in workloads:
                if workload not in endpoints:
                    raise InputError(
                        f"is no workload of fleet {self.name!r}{nearest(workload, endpoints)}", field=workload
                    )
            actual = observe(self.launcher, self.gateway, self.name)
            running = [s.spec for s in actual.servers if s.state is ServerState.RUNNING]
            # The routes as they are: a pool that lost a server keeps the others.
            current = named(self.gateway.routes())
            present = as_moved(self.desired(plan, settings), running, current)
            asked = [endpoints[w] for w in workloads]
            if others := companions(present, asked):
                self.say(f"{', '.join(others)}: in one partition with {', '.join(asked)}, so redirected too")
            turned = [*asked, *others]
            routes = redirected(present, current, turned, {spec.name for spec in running})
            self._run((Commit(routes),), actual)
            partitions = {s.name: s.spec.labels.partition for s in actual.servers}
            for partition, source, target in moves(current, routes, turned, partitions):
                self._tell("info", "redirect", partition, f"{source} -> {target}: by hand")
            return {e: routes[e] for e in turned}

    def destroy(self) -> Outcome:
        """Drain and stop all servers with this fleet's labels and the gateway, and remove its files."""
        with locked(self.files):
            settings = self.files.settings()
            actual = observe(self.launcher, self.gateway, self.name)
            actions = destroy(actual)
            try:
                self._run(actions, actual)
            except GatewayError as error:
                self.say(f"warning: {error}; the servers are stopped anyway")
                self._run(tuple(a for a in actions if isinstance(a, Remove | Stop)), actual)
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

    def _models_of_present(self, plan: Plan) -> Applied | None:
        """Return the present plan's pinned models for another plan; None where that has further ones."""
        present = self.files.record().applied
        models = {placement.model for _, _, placement in plan.placements()}
        if present is None or not models <= present.models.keys():
            return None
        return Applied(plan_hash(plan), {model: present.models[model] for model in sorted(models)})

    def _write_applied(self, plan: Plan, applied: Applied, before: Plan | None) -> None:
        """Record a plan and its models, and what a rollback brings back where one of the two is new."""
        record = self.files.record()
        former = None if before is None else record.of_plan(plan_hash(before))
        changed = before is not None and (
            plan_hash(before) != plan_hash(plan) or (former is not None and not applied.same_as(former))
        )
        self.files.write_record(Record(applied, former if changed else record.previous))
        self.files.write_plans(plan, before if changed else None)

    def _check_made_from(self, expected: str | None) -> None:
        if expected is None:
            return
        running = self.files.plan()
        found = "none" if running is None else plan_hash(running)
        if found != expected:
            raise EngineError(
                f"the plan was made from plan {expected}, and {found} runs by now; nothing was "
                "touched: another command changed it"
            )

    def _endings(self, plan: Plan) -> tuple[Ending, ...]:
        """Return the served endpoints that a plan ends."""
        before = self.files.plan()
        ended = endings(before, plan) if before is not None else ()
        served = set(self.gateway.routes()) if ended else set()
        return tuple(e for e in ended if e.endpoint in served)

    def _wanted(self, plan: Plan, desired: Desired, actual: Actual, as_planned: bool) -> Desired:
        """Return the fleet that is wanted now; report which redirects stay and which are undone."""
        running = [s.spec for s in actual.servers if s.state is ServerState.RUNNING]
        before = self.files.plan()
        keep = not as_planned and before is not None and plan_hash(before) == plan_hash(plan)
        for one in moved(desired, running, actual.routes):
            has = f"{one.partition} was redirected to {one.present.percent:g} % of {one.present.device}"
            planned = f"{one.planned.percent:g} % of {one.planned.device}"
            same = (one.present.percent, one.present.device) == (one.planned.percent, one.planned.device)
            back = "" if same else f"; `--as-planned` brings back the plan's {planned}"
            self.say(
                f"{has} and stays there{back}" if keep else f"{has}: that is undone, {planned} is planned"
            )
        return as_moved(desired, running, actual.routes) if keep else desired

    def _run(self, actions: tuple[Action, ...], actual: Actual) -> None:
        self._execute(actions, actual)
        if any(isinstance(a, Stop) for a in actions):
            self.launcher.sweep(self.name)
        self._journal().write("converged")

    def _execute(self, actions: tuple[Action, ...], actual: Actual) -> None:
        Executor(self.launcher, self.gateway, self.name, self._journal(), self.say, self.limits).run(
            actions, actual
        )

    def _tell(self, level: str, kind: str, subject: str, reason: str) -> None:
        History(self.files.history).write(Event(self.clock.wall(), level, kind, subject, reason))

    def _journal(self) -> FleetJournal:
        return FleetJournal(self.files, self.clock)

    def _announce_output(self, output: str) -> None:
        """Record an output directory before it is used, so that its content is removed after any kill."""
        known = self.files.settings()
        if known is not None and output not in (known.output, *known.former_outputs):
            self.files.write_settings(replace(known, former_outputs=(*known.former_outputs, output)))

    def _forget_rendered(self, settings: FleetSettings, specs: Sequence[ServerSpec]) -> None:
        """Remove the repositories that none of `specs` uses; a rollback renders its plan again.

        Of the pinned models stay those which these repositories, the plan and the previous one have.
        """
        record = self.files.record()
        needed = {spec.repository for spec in specs}
        needed |= {r for one in (record.applied, record.previous) if one for r in one.repositories.values()}
        forget_rendered(Path(settings.output), self.name, needed)
        former = settings.former_outputs
        left = tuple(output for output in former if forget_rendered(Path(output), self.name, needed))
        if left != former:
            self.files.write_settings(replace(settings, former_outputs=left))


def summary_of(plan: Plan, before: Plan | None, actions: Sequence[Action], cause: str) -> str:
    """Summarise an apply for the history."""
    started = sum(isinstance(a, Start) for a in actions)
    stopped = sum(isinstance(a, Stop) for a in actions)
    now = {partition.id for _, partition in plan.partitions()}
    gone = sorted({p.id for _, p in before.partitions()} - now) if before is not None else []
    ended = f"; ended: {', '.join(gone)}" if gone else ""
    totals = f"{counted(started, 'server')} started, {stopped} stopped, {counted(len(now), 'partition')}"
    return f"plan {plan_hash(plan)} {cause}: {totals}{ended}"
