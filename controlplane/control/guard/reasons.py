"""The evidence in words, for events. Pure."""

from __future__ import annotations

from controlplane.control.guard import slo_window
from controlplane.control.guard.causes import contention, over_plan, split
from controlplane.control.guard.rule import LATE, longer_than_planned
from controlplane.control.guard.state import Watch
from controlplane.domain.observation import HostSeen, ServerSeen


def slowness(watch: Watch, seen: ServerSeen, host: HostSeen | None) -> str:
    """Return the evidence of a slow server, and of a contended host."""
    parts = [
        f"{queue.promise.subject}: batches take longer than they did"
        for queue in watch.queues
        if queue.slowness >= 1.0
    ]
    parts += [
        longer_in_words(watch),
        *(
            f"{queue.promise.subject}: more than 1 % above {queue.promise.slo_ms:g} ms "
            f"at {queue.rates_rps[0]:.0f} of {queue.promise.rate_rps:g} req/s"
            for queue in watch.queues
            if queue.lateness >= LATE
        ),
        split(seen),
    ]
    found = "; ".join(filter(None, parts)) or "more than 1 % above the SLO"
    return "; ".join(filter(None, (found, contention(host))))


def longer_in_words(watch: Watch) -> str:
    """Return by how much batches certainly take longer than planned; empty where none does."""
    factors = ((queue.promise.subject, longer_than_planned(queue)) for queue in watch.queues)
    return "; ".join(
        f"{subject}: batches take {factor:.2f} times as long as planned"
        for subject, factor in factors
        if factor > 1.0
    )


def broken_slo(watch: Watch, seen: ServerSeen, host: HostSeen | None) -> str | None:
    """Return what clients saw where a P99 was above its SLO lately, and why; None where none was."""
    for queue in watch.queues:
        lately = slo_window.broken(queue.window, queue.promise.natural_scale)
        if lately is None:
            continue
        found = (
            f"{queue.promise.subject}: the P99 is above {queue.promise.slo_ms:g} ms: {lately.late} of "
            f"{lately.requests} requests of {queue.window.until_s - lately.began_s:.0f} s took longer"
        )
        overrun = over_plan(watch.queues, seen)
        more = f"more traffic than planned: {overrun}" if overrun else ""
        causes = filter(None, (more, longer_in_words(watch), contention(host)))
        return f"{found}; {'; '.join(causes) or 'the cause is not known'}"
    return None


def silence(watch: Watch, seen: ServerSeen, now_s: float) -> str:
    """Return the evidence of a hang, and the way out where the requests were only long ones."""
    count = seen.in_flight + seen.streaming
    no = "no answer" if watch.answered_s <= watch.worked_s else "no answer but refusals"
    return (
        f"{no} for {now_s - watch.worked_s:.1f} s with {count} requests open; "
        "if requests may take so long, say so by longest_ms in the spec"
    )
