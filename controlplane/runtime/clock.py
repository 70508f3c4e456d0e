"""The real clock behind `ports.Clock`, and waiting with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable


class SystemClock:
    """`ports.Clock` on this host."""

    def monotonic(self) -> float:
        """Seconds since some fixed point, never going back."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()


def wait_until(condition: Callable[[], bool], *, deadline_s: float, interval_s: float = 0.02) -> bool:
    """Poll `condition` until it holds or `deadline_s` have passed; return whether it held."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(interval_s)
    return True
