"""Model Analyzer's metrics-model-inference.csv.

The columns are its `inference_output_fields` (docs/config.md and model_analyzer/record/types of
triton-inference-server/model_analyzer): by default Model, Batch, Concurrency, Model Config Path, Instance
Group, Max Batch Size, Satisfies Constraints, Throughput (infer/sec) and p99 Latency (ms); on request also the
times in the server. Which columns there are decides how much is known.
"""

from __future__ import annotations

import re
from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.files.measurements.elsewhere.run import Row, Run, rows, spread_of
from controlplane.files.mistakes import nearest

_EXECUTION = (
    "Server Compute Input time (ms)",
    "Server Compute Infer time (ms)",
    "Server Compute Output time (ms)",
)
_LATENCIES = ("Avg Latency (ms)", "p99 Latency (ms)")
_MADE_BY = (
    "it is Model Analyzer's metrics-model-inference.csv, and its inference_output_fields must have "
    "model_name, batch_size, concurrency and perf_latency_p99"
)


def read_runs(path: Path, model: str) -> tuple[Run, ...]:
    """Read a model's runs at concurrency 1 with one instance, one for each batch.

    Of several configurations of the model the slowest counts: they differ in what one request at a time does
    not use. Raises InputError naming file, line and column, and for a model that has no such run.
    """
    slowest: dict[int, Run] = {}
    models: set[str] = set()
    for row in rows(path, ("Model", "Batch", "Concurrency"), _MADE_BY):
        models.add(row.values["Model"])
        if row.values["Model"] != model or row.number("Concurrency") != 1 or not _one_instance(row):
            continue
        run = _run(row)
        if run.batch not in slowest or run.execution_ms > slowest[run.batch].execution_ms:
            slowest[run.batch] = run
    if model not in models:
        raise InputError(f"has no run of {model!r}{nearest(model, models)}", file=str(path), field="Model")
    if not slowest:
        raise InputError(
            f"has no run of {model!r} with one instance and one request at a time, and with more of them "
            "Triton may form other batches: profile with concurrency 1 and instance count 1",
            file=str(path),
            field="Concurrency",
        )
    return tuple(slowest[batch] for batch in sorted(slowest))


def _one_instance(row: Row) -> bool:
    """Return whether the run had one instance: `1:GPU`, `1/GPU`, or nothing said."""
    counts = re.findall(r"(\d+)\s*[:/]", row.values.get("Instance Group") or "")
    return all(int(count) == 1 for count in counts)


def _run(row: Row) -> Run:
    batch, max_batch = row.number("Batch"), row.optional("Max Batch Size")
    average, p99 = (row.optional(column) for column in _LATENCIES)
    parts = [row.optional(column) for column in _EXECUTION]
    known = [part for part in parts if part is not None]
    queue = row.optional("Server Queue time (ms)") or 0.0
    whole = p99 if average is None else average
    if len(known) < len(parts) and whole is None:
        raise row.error(f"has no value; {_MADE_BY}", _LATENCIES[1])
    split = len(known) == len(parts)
    execution = sum(known) if split else whole
    assert execution is not None
    return Run(
        batch=int(batch),
        execution_ms=execution,
        split=split,
        frontend_ms=max(0.0, average - queue - execution) if split and average is not None else None,
        spread_ms=None if average is None or p99 is None else spread_of(average, p99),
        max_batch=None if max_batch is None else int(max_batch),
    )
