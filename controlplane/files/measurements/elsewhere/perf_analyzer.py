"""The CSV of `perf_analyzer -f FILE`, with or without `--verbose-csv`.

    Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,
    Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency

Times are in microseconds (docs/measurements_metrics.md of triton-inference-server/perf_analyzer). The batch
is not in the file.
"""

from __future__ import annotations

from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.files.measurements.elsewhere.run import Run, rows, spread_of

_EXECUTION = ("Server Compute Input", "Server Compute Infer", "Server Compute Output")
_OUTSIDE = ("Client Send", "Network+Server Send/Recv", "Client Recv")
_MADE_BY = "it is written by `perf_analyzer -m MODEL -b BATCH --concurrency-range 1 --percentile 99 -f FILE`"


def read_run(path: Path, batch: int) -> Run:
    """Read the run of a batch at concurrency 1. Raises InputError naming file, line and column."""
    needed = ("Concurrency", *_EXECUTION, *_OUTSIDE)
    for row in rows(path, needed, _MADE_BY):
        if row.number("Concurrency") != 1:
            continue
        execution_ms = sum(row.number(column) for column in _EXECUTION) / 1000.0
        if execution_ms <= 0:
            raise row.error("must be above 0: perf_analyzer had no statistics of the server", _EXECUTION[1])
        p50, p99 = row.optional("p50 latency"), row.optional("p99 latency")
        return Run(
            batch=batch,
            execution_ms=execution_ms,
            frontend_ms=sum(row.number(column) for column in _OUTSIDE) / 1000.0,
            spread_ms=None if p50 is None or p99 is None else spread_of(p50 / 1000.0, p99 / 1000.0),
        )
    raise InputError(
        "has no run with one request at a time, and with more of them Triton may form other batches: measure "
        "with --concurrency-range 1",
        file=str(path),
        field="Concurrency",
    )
