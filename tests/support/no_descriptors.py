"""A process that can open nothing more, as one that has used up its descriptors."""

import contextlib
import os
import resource
import time
from collections.abc import Iterator

_LOOKS = 50
_BETWEEN_S = 0.01


@contextlib.contextmanager
def without_descriptors(pid: int | None = None) -> Iterator[None]:
    """Let a process (this one by default) open nothing more than it has open, for a while."""
    which = pid or os.getpid()
    before = resource.prlimit(which, resource.RLIMIT_NOFILE)
    # The limit is on the number of a new descriptor, which is the lowest free one. (Not 0: poll takes no more
    # descriptors than the limit.)
    lowest = _lowest_free(os.getpid()) if pid is None else _lowest_ever_free(pid)
    resource.prlimit(which, resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.prlimit(which, resource.RLIMIT_NOFILE, before)


def _lowest_ever_free(pid: int) -> int:
    """Return it over many looks: a process that works has some descriptors for a moment only."""
    found = []
    for _ in range(_LOOKS):
        found.append(_lowest_free(pid))
        time.sleep(_BETWEEN_S)
    return min(found)


def _lowest_free(pid: int) -> int:
    listed = os.open(f"/proc/{pid}/fd", os.O_RDONLY)
    used = {int(name) for name in os.listdir(listed)} - ({listed} if pid == os.getpid() else set())
    os.close(listed)
    return next(number for number in range(len(used) + 1) if number not in used)
