"""The rule: whether a server breaks a promise, whose fault it is, and why in words. Pure; design/guard.md.

The kernel counts how long the busiest thread of a server is ready to run without running: because the server
has used up its quota, or because other work has the core. The host explains the second part of a batch's time
and nothing else. The gateway runs under no quota of ours and works little, so its waits show the whole host:
where it mostly waits for a core while it is ready to run, a larger share of that core is no larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import StrEnum

from controlplane.control.guard import baseline, batch_times
from controlplane.control.guard.baseline import rounded_p99_s
from controlplane.control.guard.batch_times import NO_PART, SURE, HostPart
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.queues import MEMORIES, QueueState, broken, memory_s
from controlplane.control.guard.state import Limits, Watch
from controlplane.domain.fleet import Delays
from controlplane.domain.observation import HostSeen, ServerSeen

SHARED = 0.8
"""The part of the evidence of late answers that batches which certainly take longer replace: some seven late
answers are enough then, at 100 req/s and an SLO of 50 ms. Slower batches alone break no promise."""
LATE = 1.0 - SHARED
MODEL_ERROR = 1.03
"""The queue model's P99 is off by as much, ..."""
AHEAD = 1.1
"""... and it must be so far above the SLO while nothing is late yet."""


class Verdict(StrEnum):
    """What follows from the evidence on a server that lives."""

    KEPT = "its promises are kept"
    PAST = "nothing followed an alarm"
    WAIT = "a reading may name another cause"
    TRAFFIC = "more traffic than planned"
    HOST = "other work has its core"
    SLOW = "the server is slow"


def verdict(watch: Watch, active: ServerSeen, host: HostSeen | None, now_s: float, limits: Limits) -> Verdict:
    """Return whether a promise is broken, and by what."""
    if watch.broken_s is None:
        return Verdict.KEPT
    if now_s - watch.alarm_s > limits.calm_s:
        return Verdict.PAST
    unread = sizes_unknown(watch, active) or (bool(contention(host)) and active.delays is None)
    if unread and now_s - watch.broken_s < limits.sizes_s:
        return Verdict.WAIT
    if over_plan(watch.queues, active) is not None:
        return Verdict.TRAFFIC
    part = host_part(host, active, watch.active.percent)
    explained = bool(contention(host)) and watch.unexplained < UNEXPLAINED
    if explained and not any(breaks_itself(queue, part) for queue in watch.queues):
        return Verdict.HOST
    return Verdict.SLOW


def is_slow(queue: QueueState, host: HostPart = NO_PART) -> bool:
    """Return whether it is an alarm that batches take longer, than they did or than planned.

    Those that take longer than they did make answers late, or certainly take longer and will do so.
    """
    return is_enough(queue.lateness, queue.slowness) or breaks_itself(queue, host)


def is_enough(late: float, slower: float) -> bool:
    """Return whether the evidence of late answers and of slower batches together is an alarm."""
    return late >= 1.0 - SHARED * slower


def breaks_itself(queue: QueueState, host: HostPart) -> bool:
    """Return whether a server's own batch times certainly break the P99, whatever the host adds to them."""
    slower = queue.slowness >= 1.0 or host.cut
    return (slower and will_break(queue, host)) or breaks_as_measured(queue)


def suspicion(watch: Watch) -> float:
    """Return the strongest evidence of a broken promise; 1 is an alarm."""
    return max(max(queue.lateness, queue.slowness) for queue in watch.queues)


def sizes_unknown(watch: Watch, seen: ServerSeen) -> bool:
    """Return whether a verdict from batch times must wait for the number of inferences in a request.

    More of them make longer batches. Triton counts them, and its counts are read under suspicion only. A
    verdict from late answers needs no such count.
    """
    if any(queue.lateness >= 1.0 for queue in watch.queues):
        return False
    return any(queue.promise.endpoint not in seen.inferences for queue in watch.queues)


def will_break(queue: QueueState, host: HostPart) -> bool:
    """Return whether the queue model puts the P99 above the SLO at the server's own batch times and the rate.

    What the host adds to them is no server's fault. The rate counts up to the planned one: more traffic does
    not make a server slow.
    """
    promise, known = queue.promise, queue.batches.baseline
    usual_s = baseline.usual_s(known, promise.batch)
    rate_rps = min(queue.rates_rps[-1], promise.rate_rps)
    slower = batch_times.slowdown(queue.batches, host)
    if not usual_s or rate_rps <= 0.0 or slower <= 0.0:
        return False
    times_s = [slower * time_s for time_s in usual_s]
    return baseline.exceeds(promise.slo_ms / 1000.0, rate_rps, times_s, baseline.spread(known))


def breaks_as_measured(queue: QueueState) -> bool:
    """Return whether the P99 is above the SLO at the times that batches take beside the plan's.

    It does so whatever was usual: a server that was slow from its first batch on has no faster baseline. The
    host's part is left out. Batches as fast as planned need no queue model, which takes milliseconds.
    """
    ratio, error = batch_times.beside_plan(queue.batches)
    ratio -= SURE * error
    least = MODEL_ERROR if any(queue.late.charts) else AHEAD
    return ratio > 1.0 and overrun_at(queue, ratio) > least


def overrun_at(queue: QueueState, factor: float) -> float:
    """Return the P99 as a part of the SLO where batches take so many times the planned ones; 0: unknown.

    The planned P99 counts, in proportion to the queue model's at these and at the planned times: it knows of
    pools and dispersion. What a request spends outside of the queue stays.
    """
    promise, spread = queue.promise, baseline.spread(queue.batches.baseline)
    if promise.p99_ms is None or not promise.batch_ms:
        return 0.0
    rate_rps = min(promise.rate_rps, max(queue.rates_rps[-1], 1e-9))
    now_s = rounded_p99_s(rate_rps, [factor * time_s for time_s in promise.batch_s], spread)
    then_s = rounded_p99_s(promise.rate_rps, promise.batch_s, spread)
    if math.isinf(then_s):
        return 0.0
    inside_ms = max(0.0, promise.p99_ms - promise.frontend_ms)
    return (promise.frontend_ms + inside_ms * now_s / then_s) / promise.slo_ms


def longer_than_planned(queue: QueueState) -> float:
    """Return how many times as long as planned batches certainly take; 1 where they do not."""
    factor, error = batch_times.beside_plan(queue.batches)
    return factor if factor > 1.0 + SURE * error else 1.0


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
"""Ready to run, it waits for other work most of the time."""
STEAL = 0.05
THROTTLED = 0.05

UNEXPLAINED = 0.8
"""Late answers are no evidence where a contended host explains more than a fifth of a server's time."""

LEAST_UNEXPLAINED = 0.05

LOST = 0.5
"""A server whose quota lets it run for less than this part of its share has lost it. One that has its share
runs for all of it: a little less where Triton's other threads work too."""


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


def starved(delays: Delays | None) -> bool:
    """Return whether a server waits for its core more than it runs, where that is known."""
    return delays is not None and delays.starved >= WAITING


def host_part(host: HostSeen | None, server: ServerSeen, percent: float) -> HostPart:
    """Return what the host explains of a batch's time: nothing of a server's own where nothing counts that.

    `percent` is the server's share. A server that is ready all the time is throttled for the rest of it.
    Stolen time is neither a thread's run time nor its wait. A part remains at any delay: a batch that takes
    twenty times as long is no batch of usual time.
    """
    wait_s = host.wait_s if host is not None else 0.0
    if server.delays is None:
        return HostPart(1.0, wait_s)
    steal = host.steal if host is not None else 0.0
    own, throttled = 1.0 - server.delays.starved, server.delays.throttled
    cut = throttled > 0.0 and own - throttled < LOST * percent / 100.0 * own
    return HostPart(max(LEAST_UNEXPLAINED, own * (1.0 - steal)), wait_s, cut)


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
        lately = broken(queue.window, queue.promise.natural_scale)
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
