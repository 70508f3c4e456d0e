"""A time of day that a test sets for real processes, by a preloaded library. The monotonic clock stays.

What stays too, unlike on a host whose clock is set: the times of files, and the kernel's own. (Rejected:
libfaketime, under which Python's `time.sleep` fails.)
"""

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

COMPILER = shutil.which("cc")
NOT_RUN = "CLOCK STEPS NOT RUN: there is no C compiler (cc), which builds the library that sets the clock"
_SOURCE = Path(__file__).with_suffix(".c")
_SECONDS = struct.Struct("=q")


class SteppedClock:
    """The time of day of all processes that were started with `environment`, and of their children."""

    def __init__(self, directory: Path) -> None:
        library, file = directory / "stepped_clock.so", directory / "time_of_day"
        command = [
            str(COMPILER),
            "-shared",
            "-fPIC",
            "-O1",
            "-Wall",
            "-Werror",
            "-o",
            str(library),
            str(_SOURCE),
            "-ldl",
        ]
        subprocess.run(command, check=True)
        file.write_bytes(_SECONDS.pack(0))
        with file.open("r+b") as opened:
            self._mapped = mmap.mmap(opened.fileno(), _SECONDS.size)
        self.environment = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(file)}

    def set(self, ahead_s: int) -> None:
        """Have the processes' time of day so far ahead of the host's."""
        self._mapped[:] = _SECONDS.pack(ahead_s)
