"""Back-off and breaker for servers that fail to start. Pure.

A start has failed in a row if its server did not live for a while; the waits double, then the breaker opens.
"""

from __future__ import annotations

from controlplane.control.guard.state import Launches, Limits, Watch
from controlplane.domain.workload import ShadowPolicy


def failed(book: Launches, lived_s: float, now_s: float, limits: Limits, *, served: bool) -> Launches:
    """Return the record after the death of a server that had been ready for `lived_s` (-inf: never).

    Where no other server serves its partition (`served`), a server that lived long gets a successor at once,
    also after failed starts of shadows, and the breaker is open for a shorter time.
    """
    if lived_s > limits.stable_s:
        return book if book.open and served else Launches()
    failures = book.failures + 1
    if failures < limits.failures:
        wait_s = min(limits.back_off_max_s, limits.back_off_s * 2.0 ** (failures - 1))
        return Launches(failures, now_s + wait_s)
    wait_s = limits.breaker_s if served else limits.back_off_max_s
    return Launches(failures, now_s + wait_s, open=True)


def proven(watch: Watch, limits: Limits, now_s: float) -> bool:
    """Return whether all servers of a partition have lived so long that no start counts as failed."""
    if watch.standby is None and watch.partition.policy is not ShadowPolicy.NONE:
        return False
    placed_servers = (watch.active, watch.standby)
    return all(now_s - placed.since_s > limits.stable_s for placed in placed_servers if placed is not None)
