"""Completion of values by Tab: from files of this host and from tables, never over the network.

A completion must not fail: where a file cannot be read, there is nothing to propose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import typer

from controlplane.cli.verbs import VERBS
from controlplane.domain.errors import TrisectError


def fleets(incomplete: str) -> list[str]:
    """Return the fleets that were applied."""
    from controlplane.files.fleets import fleets, state_root

    return _matching(incomplete, lambda: fleets(state_root()))


def endpoints(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the endpoints of the fleet that the command line names."""
    return _matching(incomplete, lambda: {endpoint for _, endpoint in _placements(ctx)})


def workloads(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the workloads of the fleet that the command line names."""
    return _matching(incomplete, lambda: {workload for workload, _ in _placements(ctx)})


def clients(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the clients that have access to the fleet that the command line names."""
    from controlplane.cli import wiring

    return _matching(incomplete, lambda: [c.name for c in wiring.clients(ctx.params["fleet"]).clients()])


def models(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the models of the repository that the command line names."""

    def found() -> list[str]:
        folders = Path(ctx.params["repository"]).iterdir()
        return [folder.name for folder in folders if (folder / "config.pbtxt").exists()]

    return _matching(incomplete, found)


def documents(incomplete: str) -> list[str]:
    """Return the names of the documents that have a schema."""
    return _matching(incomplete, lambda: {*VERBS, "spec", "error"} - {"schema"})


def strategies(incomplete: str) -> list[str]:
    """Return the planning algorithms."""
    from controlplane.planning.registry import STRATEGIES

    return _matching(incomplete, STRATEGIES.names)


def settings(kind: str) -> Callable[[str], list[str]]:
    """Return what proposes the keys of a verb's settings, for `--set`."""

    def proposed(incomplete: str) -> list[str]:
        from controlplane.domain import settings
        from controlplane.files.set_values import keys

        return _matching(incomplete, lambda: [f"{key.path}=" for key in keys(getattr(settings, kind))])

    return proposed


def built_in_devices(incomplete: str) -> list[str]:
    """Return the devices with built-in measurements."""
    from controlplane.files import catalogue

    return _matching(incomplete, catalogue.devices)


def _placements(ctx: typer.Context) -> list[tuple[str, str]]:
    from controlplane.cli import wiring

    plan = wiring.fleet_files(ctx.params["fleet"]).plan()
    return [] if plan is None else [(p.name, p.endpoint) for _, _, p in plan.placements()]


def _matching(incomplete: str, known: Callable[[], Iterable[str]]) -> list[str]:
    try:
        return sorted(name for name in known() if name.startswith(incomplete))
    except (TrisectError, OSError):
        return []
