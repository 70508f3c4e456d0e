"""A time of day that a test sets for real processes, by libfaketime. The monotonic clock stays.

What stays too, unlike on a host whose clock is set: the times of files, and the kernel's own.
"""

from __future__ import annotations

import os
from pathlib import Path

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
NOT_RUN = "CLOCK STEPS NOT RUN: there is no libfaketime; `make test-packages` installs it where it may"


class SteppedClock:
    """The time of day of all processes that were started with `environment`, and of their children."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "time_of_day"
        self.set(0)

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the processes; none without the library."""
        if LIBRARY is None:
            return {}
        return {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def set(self, ahead_s: int) -> None:
        """Have the processes' time of day so far ahead of the host's."""
        written = self._file.with_suffix(".new")
        written.write_text(f"{ahead_s:+d}\n")
        os.replace(written, self._file)
