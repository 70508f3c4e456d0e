"""A process that can open nothing more, as one that has used up its descriptors."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def without_descriptors(pid: int | None = None) -> Iterator[None]:
    """Let a process (this one by default) open nothing more than it has open, for a while."""
    which = pid or os.getpid()
    before = resource.prlimit(which, resource.RLIMIT_NOFILE)
    # The limit is on the number of a new descriptor, which is the lowest free one. (Not 0: poll takes no more
    # descriptors than the limit.)
    listed = os.open(f"/proc/{which}/fd", os.O_RDONLY)
    used = {int(name) for name in os.listdir(listed)} - ({listed} if pid is None else set())
    os.close(listed)
    lowest = next(number for number in range(len(used) + 1) if number not in used)
    resource.prlimit(which, resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.prlimit(which, resource.RLIMIT_NOFILE, before)
