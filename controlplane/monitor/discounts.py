"""A Triton's own metrics without what the fleet itself asked of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from controlplane.domain.observation import Entry
from controlplane.files.gateway.discounts import Discounts, read_discounts
from controlplane.monitor.metrics import number

_MODEL = re.compile(r'model="([^"]*)",(?:reason="(?:BACKEND|OTHER)",)?version="([^"]*)"')
"""Failures of the fleet's own have the first reason, of ensembles the second; a model counts one of both."""
_TIMED = {
    "nv_inference_request": "success",
    "nv_inference_queue": "queue",
    "nv_inference_compute_input": "compute_input",
    "nv_inference_compute_infer": "compute_infer",
    "nv_inference_compute_output": "compute_output",
}
_STATISTIC_OF = {
    "nv_inference_request_success": ("success", "count"),
    "nv_inference_request_failure": ("fail", "count"),
    **{
        f"{name}_{end}": (of, "ns")
        for name, of in _TIMED.items()
        for end in ("duration_us", "summary_us_sum")
    },
    **{f"{name}_summary_us_count": (of, "count") for name, of in _TIMED.items()},
    "nv_cache_num_hits_per_model": ("cache_hit", "count"),
    "nv_cache_hit_duration_per_model": ("cache_hit", "ns"),
    "nv_cache_num_misses_per_model": ("cache_miss", "count"),
    "nv_cache_miss_duration_per_model": ("cache_miss", "ns"),
}
_COUNTER_OF = {"nv_inference_count": "inference_count", "nv_inference_exec_count": "execution_count"}
_NANOS_PER_MICRO = 1000


class ClientsCounters:
    """Counters of clients' inferences alone, which never decrease while a server's own do not.

    The fleet's inferences are noted before the server counts them: meanwhile a counter stays as it was.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: dict[tuple[str, str, str], tuple[float, float]] = {}

    def of(self, server: str) -> Discounts:
        """Return what is left out of a server's counters now."""
        return read_discounts(self._folder, server)

    def value(self, server: str, own: Discounts, name: str, labels: str, value: str) -> str:
        """Return a metric's value as clients' inferences make it; that of any other metric as it is."""
        found = _MODEL.search(labels) if name in _STATISTIC_OF or name in _COUNTER_OF else None
        entry = None if found is None else own.get((found.group(1), found.group(2)))
        if entry is None:
            return value
        raw = float(value)
        before, last = self._last.get((server, name, labels), (0.0, 0.0))
        clients = max(raw - _own(entry, name), last if raw >= before else 0.0)
        self._last[server, name, labels] = raw, clients
        return number(clients)

    def keep_only(self, servers: Mapping[str, object]) -> None:
        """Forget all other servers."""
        self._last = {key: value for key, value in self._last.items() if key[0] in servers}


def _own(entry: Entry, name: str) -> int:
    if name in _COUNTER_OF:
        return int(entry[_COUNTER_OF[name]])
    statistic, unit = _STATISTIC_OF[name]
    counted = int(entry["inference_stats"].get(statistic, {}).get(unit, 0))
    return counted // _NANOS_PER_MICRO if unit == "ns" else counted
