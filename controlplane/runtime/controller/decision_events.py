"""Events about the guard's decisions."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.control.converge.desired import NamedRoute
from controlplane.control.guard.state import (
    DrainAndStop,
    Effect,
    GuardState,
    Launch,
    Load,
    OpenBreaker,
    Probe,
    Redirect,
    Refuse,
    Report,
)
from controlplane.runtime.fleet.history import Event


def changed_routes(before: Mapping[str, NamedRoute], after: Mapping[str, NamedRoute]) -> str:
    """Describe the endpoints that get other servers; empty if there are none."""
    moved: dict[tuple[str, ...], list[str]] = {}
    for endpoint, route in sorted(after.items()):
        if endpoint not in before or before[endpoint].members != route.members:
            moved.setdefault(route.members, []).append(endpoint)
    return "; ".join(
        f"{', '.join(endpoints)} -> {', '.join(members)}" for members, endpoints in moved.items()
    )


def found_dead(
    state: GuardState, before: Mapping[str, NamedRoute], effects: tuple[Effect, ...]
) -> list[tuple[str, str]]:
    """Return (partition, reason) where an adoption replaced a dead server, for the history."""
    redirected = {effect.partition for effect in effects if isinstance(effect, Redirect)}
    found = []
    for watch in state.watches.values():
        members = next((before[e].members for e in watch.partition.endpoints if e in before), ())
        if members and watch.active.server not in members and watch.partition.id not in redirected:
            reason = f"{', '.join(members)} -> {watch.active.server}: found dead when the fleet was adopted"
            found.append((watch.partition.id, reason))
    return found


def event_of(effect: Effect, wall_s: float, now_s: float) -> Event | None:
    """Return the event of an effect; None if it needs none. `now_s` is the guard's clock."""
    match effect:
        case Redirect(partition, source, target, cause):
            return Event(wall_s, "warning", "redirect", partition, f"{source} -> {target}: {cause}")
        case Launch(partition, server, gpu, percent, attempt):
            before = f", after {attempt - 1} in a row that did not last" if attempt > 1 else ""
            reason = f"{server}: {percent:g} % of {gpu}{before}"
            return Event(wall_s, "info", "launch", partition, reason)
        case DrainAndStop(server, ending):
            return Event(wall_s, "info", "stop", server, str(ending))
        case Refuse(partition, accused, seconds):
            what = f"refused for {seconds:g} s" if seconds else "no second server for a lost request"
            return Event(wall_s, "critical", "refuse", partition, f"{accused}: {what}")
        case OpenBreaker(partition, until_s):
            return Event(wall_s, "critical", "breaker", partition, f"no start for {until_s - now_s:.0f} s")
        case Report(level, subject, reason):
            return Event(wall_s, str(level), "notice", subject, reason)
        case Load() | Probe():
            return None
