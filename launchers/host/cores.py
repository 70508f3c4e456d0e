"""Cores of this host as devices: `cpu-0`, `cpu-1`, ..."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from controlplane.domain.errors import InputError


def core_of(device: str) -> int:
    """Return the core that `cpu-i` names.

    Raises InputError for another kind of device, or a core this program may not use.
    """
    found = re.fullmatch(r"cpu-(\d+)", device)
    if found is None:
        raise InputError(
            f"{device!r} is no core of this host: cores are cpu-0, cpu-1, ...",
            field="device",
        )
    core = int(found.group(1))
    with pinned(core):
        return core


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Keep this thread on one core; processes that it starts inherit that.

    Raises InputError for an absent core.
    """
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
    except OSError as error:
        usable = ", ".join(f"cpu-{i}" for i in sorted(before))
        raise InputError(f"this host has no core {core} for us; usable: {usable}", field="device") from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
