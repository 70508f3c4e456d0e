"""Ports for what a test starts: from a range that nothing else picks from."""

import contextlib
import itertools
import os
import random
import socket
from collections.abc import Iterator, Mapping

# Outgoing connections and whoever binds port 0 take theirs from 32768 on, launchers from 20000, gateways from
# 18000: any of them could take a port between its choice and its use.
_RANGE = range(10000, 18000)


def own_range(environment: Mapping[str, str]) -> range:
    """Return this test process's part of the range.

    A server listens seconds after its port was chosen. If another process of the same run chose that port
    too, the test would find the other process's server there, ready and without its models.
    """
    count = int(environment.get("PYTEST_XDIST_WORKER_COUNT", 1))
    number = int(environment.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    size = len(_RANGE) // count
    return _RANGE[number * size : (number + 1) * size]


def _picks(own: range) -> Iterator[int]:
    # Other runs on this host choose here too, so each begins elsewhere. No port is given out twice before all
    # were.
    start = random.SystemRandom().randrange(len(own))
    return itertools.cycle([*own[start:], *own[:start]])


_OWN = own_range(os.environ)
_PICKS = _picks(_OWN)


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now."""
    return list(itertools.islice(filter(_is_free, itertools.islice(_PICKS, len(_OWN))), count))


def _is_free(port: int) -> bool:
    # On all addresses: who listens on any of them would be in the way.
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("0.0.0.0", port))
        return True
    return False
