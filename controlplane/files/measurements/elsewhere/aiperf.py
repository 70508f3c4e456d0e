"""AIPerf's profile_export_aiperf.json, schema 1.x.

Each metric is a block with `unit`, `avg` and percentiles (docs/reference/json-export-schema.md of
ai-dynamo/aiperf). The batch is not in the file, nor what part of a latency the server took.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controlplane.domain.errors import InputError
from controlplane.files.documents import Document, read
from controlplane.files.measurements.elsewhere.run import Run

_LATENCY, _THROUGHPUT = "request_latency", "request_throughput"
_UNITS_MS = {"ms": 1.0, "milliseconds": 1.0, "s": 1000.0, "sec": 1000.0, "us": 0.001, "ns": 1e-6}
_MOST_UNDER_WAY = 1.5
"""Throughput times latency is the mean number of requests under way (Little)."""


def read_run(path: Path, batch: int) -> Run:
    """Read the run of a batch, one request at a time. Raises InputError naming file, line and field."""
    document = read(path)
    content = document.content
    if not isinstance(content, Mapping) or _LATENCY not in content:
        document.fail(
            f"has no {_LATENCY}: it must be the profile_export_aiperf.json that `aiperf profile` writes"
        )
    if content.get("was_cancelled"):
        document.fail("the run was cancelled: measure it to its end", ("was_cancelled",))
    latency = _block(document, content, _LATENCY)
    unit = str(latency.get("unit"))
    if unit not in _UNITS_MS:
        document.fail(f"{unit!r} is no unit of time that is known here: ms", (_LATENCY, "unit"))
    scale = _UNITS_MS[unit]
    average_ms = scale * _number(document, latency, _LATENCY, "avg")
    per_s = _number(document, _block(document, content, _THROUGHPUT), _THROUGHPUT, "avg")
    under_way = per_s * average_ms / 1000.0
    if under_way > _MOST_UNDER_WAY:
        document.fail(
            f"{under_way:.1f} requests were under way at a time, so that Triton may have formed other "
            "batches: measure with --concurrency 1",
            (_THROUGHPUT, "avg"),
        )
    spread = latency.get("std")
    return Run(
        batch=batch,
        execution_ms=average_ms,
        split=False,
        spread_ms=None if spread is None else scale * _number(document, latency, _LATENCY, "std"),
    )


def _block(document: Document, content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    block = content.get(name)
    if not isinstance(block, Mapping):
        raise InputError("must be a mapping with unit and avg", file=document.file, field=name)
    return block


def _number(document: Document, block: Mapping[str, Any], name: str, field: str) -> float:
    value = block.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        document.fail(f"must be a number of at least 0, not {value!r}", (name, field))
    return float(value)
