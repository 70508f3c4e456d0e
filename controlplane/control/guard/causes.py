"""Other causes of late answers than the server: traffic, and the host. Pure.

The kernel counts how long the busiest thread of a server is ready to run without running: because the server
has used up its quota, or because other work has the core. The host explains the second part of a batch's time
and nothing else. The gateway runs under no quota of ours and works little, so its waits show the whole host:
where it mostly waits for a core while it is ready to run, a larger share of that core is no larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from controlplane.control.guard.batch_times import HostPart
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.queues import MEMORIES, QueueState, memory_s
from controlplane.domain.observation import HostSeen, ServerSeen

SLOW_COMPUTE = 1.15
"""A server computes slowly if its mean batch takes this many times the predicted time of a full one."""

OVER_PLAN = 1.1


def over_plan(queues: Sequence[QueueState], seen: ServerSeen) -> str | None:
    """Return the message if more traffic than planned broke the SLO; None otherwise.

    The rate must be above the planned one by 3 standard deviations of its noise, or by 1 where Triton's times
    show that a batch takes no longer than predicted. A batch that takes longer is the server's fault at any
    rate, unless requests have more inferences than planned: the rate counts inferences.
    """
    for queue in queues:
        promise = queue.promise
        each = seen.inferences.get(promise.endpoint, promise.inferences)
        carried = each / promise.inferences
        timed = seen.compute_ms is not None and bool(promise.execution_ms)
        longer = timed and seen.compute_ms > SLOW_COMPUTE * promise.execution_ms  # type: ignore[operator]
        if (longer or queue.slowness >= 1.0) and carried <= OVER_PLAN:
            continue
        deviations = 1.0 if timed and not longer else 3.0
        mean = next(exceeding(promise, queue.rates_rps, carried, deviations), None)
        if mean is None:
            continue
        sent = f"{mean:.0f} req/s against {promise.rate_rps:g} planned"
        if carried > OVER_PLAN:
            sent += f", of {each:.1f} inferences each instead of {promise.inferences:g}"
        return f"{promise.subject}: {'; '.join(filter(None, (sent, split(seen))))}"
    return None


def exceeding(
    promise: Promise, rates_rps: Sequence[float], carried: float = 1.0, deviations: float = 3.0
) -> Iterator[float]:
    """Yield the moving means of the rate that are above the planned one, whatever their noise.

    `carried` is the inferences of a request as a multiple of the planned ones.
    """
    for mean, memory in zip(rates_rps, MEMORIES, strict=True):
        noise = math.sqrt(promise.rate_rps / (2.0 * memory_s(promise, memory)))
        if mean * carried > OVER_PLAN * promise.rate_rps + deviations * noise * carried:
            yield mean


def split(seen: ServerSeen) -> str:
    """Return where Triton says that the time goes, in words; empty where that was not read."""
    if seen.queue_ms is None or seen.compute_ms is None:
        return ""
    return f"queue {seen.queue_ms:.1f} ms, compute {seen.compute_ms:.1f} ms"


WAITING = 0.5
"""Ready to run, it waits more than it runs. At 110 requests/s: 75 % on two cores at a load average of 7.5."""
STEAL = 0.05
THROTTLED = 0.05

UNEXPLAINED = 0.8
"""Late answers alone count where the host explains less than a fifth of a server's time."""

LEAST_UNEXPLAINED = 0.05


def contention(host: HostSeen | None) -> str:
    """Return the evidence that the host is contended, in words; empty where there is none."""
    if host is None:
        return ""
    found = []
    if host.waiting >= WAITING:
        found.append(f"the gateway waited for a core in {host.waiting:.0%} of the time it was ready to run")
    if host.steal >= STEAL:
        found.append(f"the hypervisor withheld {host.steal:.0%} of the cores' time")
    if host.throttled >= THROTTLED:
        found.append(f"the gateway's own cgroup was throttled for {host.throttled:.0%} of the time")
    return f"the host is contended: {', '.join(found)}" if found else ""


def host_part(host: HostSeen | None, server: ServerSeen) -> HostPart:
    """Return what the host explains of a batch's time: nothing of a server's own where nothing counts that.

    Stolen time is neither a thread's run time nor its wait. A part remains at any delay: a batch that takes
    twenty times as long is no batch of usual time.
    """
    wait_s = host.wait_s if host is not None else 0.0
    if server.delays is None:
        return HostPart(1.0, wait_s)
    steal = host.steal if host is not None else 0.0
    return HostPart(max(LEAST_UNEXPLAINED, (1.0 - server.delays.starved) * (1.0 - steal)), wait_s)


def starves(host: HostSeen | None, unexplained_part: float) -> bool:
    """Return whether late answers are no evidence: the host is contended and explains a part of them."""
    return bool(contention(host)) and unexplained_part < UNEXPLAINED
