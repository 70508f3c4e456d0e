"""A redirect by hand: the user's command, beside those of the guard."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.control.converge.actions import Commit
from controlplane.control.converge.desired import NamedRoute, as_moved
from controlplane.control.converge.redirect import companions, moves, redirected
from controlplane.domain.errors import InputError
from controlplane.domain.fleet import ServerState
from controlplane.files.fleets import FleetSettings
from controlplane.files.mistakes import nearest
from controlplane.runtime.fleet.execute import named, observe
from controlplane.runtime.fleet.fleet import Fleet, locked


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
