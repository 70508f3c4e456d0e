"""A server without a shadow whose quota is cut: only another batch can help it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import guard_rig as rig
from ctl_fleet import plan
from guard_rig import Guarded, Load
from model_files import timed

PERCENT, BATCH, RATE_RPS = 60.0, 2, 40.0
FIXED_MS, EACH_MS = 12.0, 0.5
"""Of a whole core, for each batch and each request in it."""
LEARNED = 400
"""Answers after which the guard knows the server."""


@contextlib.contextmanager
def lone_server(directory: Path) -> Iterator[Guarded]:
    with Guarded(directory) as made:
        (made.repository / "spin" / "1" / "model.py").write_text(timed(FIXED_MS, EACH_MS, works=True))
        yield made


def document(slo_ms: float) -> dict[str, Any]:
    made = rig.partition("w", PERCENT, shadow=False, batch=BATCH, rate_rps=RATE_RPS, slo_ms=slo_ms)
    each_ms = [100.0 / PERCENT * (FIXED_MS + EACH_MS * size) for size in range(1, BATCH + 1)]
    made["workloads"][0]["predicted"] = {"batch_ms": each_ms, "p99_ms": 200.0, "utilisation": 0.5}
    return plan(made)


def load(fleet: Guarded) -> Load:
    return Load(fleet.grpc, "w", RATE_RPS, 0.0)
