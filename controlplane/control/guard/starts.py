"""Back-off and breaker for servers that fail to start, or that die soon again and again. Pure.

Each death of a server that did not live for long counts; the waits double, then the breaker opens.
"""

from __future__ import annotations

from controlplane.control.guard.state import Launches, Limits, Watch
from controlplane.domain.workload import ShadowPolicy


def failed(book: Launches, lived_s: float, now_s: float, limits: Limits, *, served: bool) -> Launches:
    """Return the record after the death of a server that had been ready for `lived_s` (-inf: never).

    Where no other server serves its partition (`served`), a server that lived long gets a successor at once,
    also after failed starts of shadows, and the breaker is open for a shorter time. In a loop of servers that
    did serve for a while the breaker is open for as long as the last one lived.
    """
    if lived_s > limits.loop_s:
        return book if book.open and served else Launches()
    failures = book.failures + 1
    started = lived_s > limits.stable_s
    if started and (failures == 1 or (failures < limits.failures and not served)):
        return Launches(failures, now_s)
    if failures < limits.failures:
        wait_s = min(limits.back_off_max_s, limits.back_off_s * 2.0 ** (failures - 1))
        return Launches(failures, now_s + wait_s)
    wait_s = limits.breaker_s if served else limits.back_off_max_s
    return Launches(failures, now_s + (min(wait_s, lived_s) if started else wait_s), open=True)


def proven(watch: Watch, limits: Limits, now_s: float) -> bool:
    """Return whether all servers of a partition have lived so long that no death counts any more."""
    if watch.standby is None and watch.partition.policy is not ShadowPolicy.NONE:
        return False
    placed_servers = (watch.active, watch.standby)
    return all(now_s - placed.since_s > limits.loop_s for placed in placed_servers if placed is not None)
