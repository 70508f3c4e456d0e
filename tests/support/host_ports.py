"""Ports for what a test starts: from a range that nothing else picks from."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
from collections.abc import Iterator

# Outgoing connections and whoever binds port 0 take theirs from 32768 on, launchers from 20000, gateways from
# 18000: any of them could take a port between its choice and its use. Others who run beside this program
# choose here too, so everybody begins elsewhere; none is given out twice until all were.
_RANGE = range(10000, 18000)


def _picks() -> Iterator[int]:
    start = random.SystemRandom().randrange(len(_RANGE))
    return itertools.cycle([*_RANGE[start:], *_RANGE[:start]])


_PICKS = _picks()


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now."""
    return list(itertools.islice(filter(_is_free, itertools.islice(_PICKS, len(_RANGE))), count))


def _is_free(port: int) -> bool:
    # On all addresses: who listens on any of them would be in the way.
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("0.0.0.0", port))
        return True
    return False
