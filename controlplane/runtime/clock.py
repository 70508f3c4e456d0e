"""The real clock behind `ports.Clock`."""

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
