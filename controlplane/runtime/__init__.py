"""Commands on a fleet, its controller, jobs of planning and measuring, and the demo; and the real clock.

jobs/        plan, profile, simulate, train, validate: from files to a result
fleet/       apply, rollback, destroy, redirect, status, events: the user's commands on a fleet
controller/  the loop that watches a fleet and acts
autoscaler/  the search for a plan that follows the load, in a process of its own
dashboard    the live page
demo/        the steps of `make demo`
polled       calls that may block, in threads, and names by the time at which each is due
"""

from __future__ import annotations

import time


class SystemClock:
    """`ports.Clock` on this host."""

    def monotonic(self) -> float:
        """Seconds since some fixed point, never going back."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()
