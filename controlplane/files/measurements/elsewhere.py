"""Measurements that other tools made: CSV of perf_analyzer and Model Analyzer, JSON of AIPerf.

Each format is read into the same `Run`s: a batch with one request under way at a time. With more of them
Triton may form other batches than the client sends, and no format says which.

perf_analyzer: the CSV of `perf_analyzer -f FILE`, with or without `--verbose-csv`.

    Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,
    Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency

Times are in microseconds (docs/measurements_metrics.md of triton-inference-server/perf_analyzer). The batch
is not in the file.

Model Analyzer: metrics-model-inference.csv. The columns are its `inference_output_fields` (docs/config.md and
model_analyzer/record/types of triton-inference-server/model_analyzer): by default Model, Batch, Concurrency,
Model Config Path, Instance Group, Max Batch Size, Satisfies Constraints, Throughput (infer/sec) and p99
Latency (ms); on request also the times in the server. Which columns there are decides how much is known.

AIPerf: profile_export_aiperf.json, schema 1.x. Each metric is a block with `unit`, `avg` and percentiles
(docs/reference/json-export-schema.md of ai-dynamo/aiperf). The batch is not in the file, nor what part of a
latency the server took.

Models alone: a CSV with model, percent, batch, ms.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.domain.units import Checked, Count, Positive
from controlplane.files.documents import Document, read, read_text
from controlplane.files.mistakes import nearest
from controlplane.latency.evaluate import Tenant

_P99_OF_NORMAL = 2.326
"""Standard deviations between the median and the P99."""


@dataclass(frozen=True, slots=True)
class Run(Checked):
    """One batch, one request at a time.

    `execution_ms` is the batch's time in the server where `split`, else the whole latency of its request.
    `frontend_ms` is what a request spends outside queue and execution, `spread_ms` the standard deviation of
    a latency; None where the format does not say.
    """

    batch: Count
    execution_ms: Positive
    split: bool = True
    frontend_ms: float | None = None
    spread_ms: float | None = None
    max_batch: int | None = None


def spread_of(p50_ms: float, p99_ms: float) -> float:
    """Return the standard deviation of a normal with these percentiles."""
    return max(0.0, p99_ms - p50_ms) / _P99_OF_NORMAL


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a CSV."""

    file: str
    line: int
    values: Mapping[str, str]

    def number(self, column: str) -> float:
        """Return a column's value. Raises InputError, naming file, line and column, if it is no number."""
        text = self.values.get(column) or ""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0:
            raise self.error(f"must be a number of at least 0, not {text!r}", column)
        return value

    def optional(self, column: str) -> float | None:
        """Return a column's value; None where the file has no such column or no value there."""
        return self.number(column) if self.values.get(column) else None

    def error(self, problem: str, column: str | None = None) -> InputError:
        """Return the error about a value."""
        return InputError(problem, file=self.file, line=self.line, field=column)


def rows(path: Path, needed: Sequence[str], made_by: str, *, whole: bool = False) -> Iterator[Row]:
    """Yield the lines of the first table of a CSV.

    An empty line ends the table, since perf_analyzer adds others below it; with `whole` it is passed over.
    Raises InputError for a file without the columns `needed`; `made_by` says how it is made.
    """
    file, lines = str(path), read_text(path).removeprefix("\ufeff").splitlines()
    end = next((i for i, line in enumerate(lines) if not line.strip()), len(lines))
    table = lines if whole else lines[:end]
    reader = csv.DictReader(table)
    for column in needed:
        if column not in (reader.fieldnames or ()):
            raise InputError(f"has no such column; {made_by}", file=file, line=1, field=column)
    found = False
    for values in reader:
        found = True
        yield Row(file, reader.line_num, values)
    if not found:
        raise InputError(f"has no measurement; {made_by}", file=file)


_PERF_EXECUTION = ("Server Compute Input", "Server Compute Infer", "Server Compute Output")
_PERF_OUTSIDE = ("Client Send", "Network+Server Send/Recv", "Client Recv")
_BY_PERF = "it is written by `perf_analyzer -m MODEL -b BATCH --concurrency-range 1 --percentile 99 -f FILE`"


def read_perf_analyzer(path: Path, batch: int) -> Run:
    """Read the run of a batch at concurrency 1. Raises InputError naming file, line and column."""
    needed = ("Concurrency", *_PERF_EXECUTION, *_PERF_OUTSIDE)
    for row in rows(path, needed, _BY_PERF):
        if row.number("Concurrency") != 1:
            continue
        execution_ms = sum(row.number(column) for column in _PERF_EXECUTION) / 1000.0
        if execution_ms <= 0:
            problem = "must be above 0: perf_analyzer had no statistics of the server"
            raise row.error(problem, _PERF_EXECUTION[1])
        p50, p99 = row.optional("p50 latency"), row.optional("p99 latency")
        return Run(
            batch=batch,
            execution_ms=execution_ms,
            frontend_ms=sum(row.number(column) for column in _PERF_OUTSIDE) / 1000.0,
            spread_ms=None if p50 is None or p99 is None else spread_of(p50 / 1000.0, p99 / 1000.0),
        )
    raise InputError(
        "has no run with one request at a time, and with more of them Triton may form other batches: measure "
        "with --concurrency-range 1",
        file=str(path),
        field="Concurrency",
    )


_ANALYZER_EXECUTION = (
    "Server Compute Input time (ms)",
    "Server Compute Infer time (ms)",
    "Server Compute Output time (ms)",
)
_ANALYZER_LATENCIES = ("Avg Latency (ms)", "p99 Latency (ms)")
_BY_ANALYZER = (
    "it is Model Analyzer's metrics-model-inference.csv, and its inference_output_fields must have "
    "model_name, batch_size, concurrency and perf_latency_p99"
)


def read_model_analyzer(path: Path, model: str) -> tuple[Run, ...]:
    """Read a model's runs at concurrency 1 with one instance, one for each batch.

    Of several configurations of the model the slowest counts: they differ in what one request at a time does
    not use. Raises InputError naming file, line and column, and for a model that has no such run.
    """
    slowest: dict[int, Run] = {}
    models: set[str] = set()
    for row in rows(path, ("Model", "Batch", "Concurrency"), _BY_ANALYZER):
        models.add(row.values["Model"])
        if row.values["Model"] != model or row.number("Concurrency") != 1:
            continue
        instances = re.findall(r"(\d+)\s*[:/]", row.values.get("Instance Group") or "")  # 1:GPU, 1/GPU
        if any(int(count) != 1 for count in instances):
            continue
        run = _analyzed(row)
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


def _analyzed(row: Row) -> Run:
    batch, max_batch = row.number("Batch"), row.optional("Max Batch Size")
    average, p99 = (row.optional(column) for column in _ANALYZER_LATENCIES)
    parts = [row.optional(column) for column in _ANALYZER_EXECUTION]
    known = [part for part in parts if part is not None]
    queue = row.optional("Server Queue time (ms)") or 0.0
    whole = p99 if average is None else average
    if len(known) < len(parts) and whole is None:
        raise row.error(f"has no value; {_BY_ANALYZER}", _ANALYZER_LATENCIES[1])
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


_AIPERF_LATENCY, _AIPERF_THROUGHPUT = "request_latency", "request_throughput"
_UNITS_MS = {"ms": 1.0, "milliseconds": 1.0, "s": 1000.0, "sec": 1000.0, "us": 0.001, "ns": 1e-6}
_MOST_UNDER_WAY = 1.5
"""Throughput times latency is the mean number of requests under way (Little)."""


def read_aiperf(path: Path, batch: int) -> Run:
    """Read the run of a batch, one request at a time. Raises InputError naming file, line and field."""
    document = read(path)
    content = document.content
    if not isinstance(content, Mapping) or _AIPERF_LATENCY not in content:
        document.fail(f"has no {_AIPERF_LATENCY}: it must be profile_export_aiperf.json of `aiperf profile`")
    if content.get("was_cancelled"):
        document.fail("the run was cancelled: measure it to its end", ("was_cancelled",))
    average = _number(document, _AIPERF_LATENCY, "avg")
    latency = content[_AIPERF_LATENCY]
    unit = str(latency.get("unit"))
    if unit not in _UNITS_MS:
        document.fail(f"{unit!r} is no unit of time that is known here: ms", (_AIPERF_LATENCY, "unit"))
    scale = _UNITS_MS[unit]
    average_ms = scale * average
    per_s = _number(document, _AIPERF_THROUGHPUT, "avg")
    under_way = per_s * average_ms / 1000.0
    if under_way > _MOST_UNDER_WAY:
        document.fail(
            f"{under_way:.1f} requests were under way at a time, so that Triton may have formed other "
            "batches: measure with --concurrency 1",
            (_AIPERF_THROUGHPUT, "avg"),
        )
    known = latency.get("std") is not None
    spread_ms = scale * _number(document, _AIPERF_LATENCY, "std") if known else None
    return Run(batch=batch, execution_ms=average_ms, split=False, spread_ms=spread_ms)


def _number(document: Document, name: str, field: str) -> float:
    block = document.content.get(name)
    if not isinstance(block, Mapping):
        document.fail("must be a mapping with unit and avg", (name,))
    value = block.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        document.fail(f"must be a number of at least 0, not {value!r}", (name, field))
    return float(value)


_ALONE = ("model", "percent", "batch", "ms")
_LARGEST_BATCH = 2**20


def read_alone(path: Path, models: Collection[str]) -> list[Tenant]:
    """Read the rows of these models alone. Raises InputError naming file, line and column."""
    found = []
    for row in rows(path, _ALONE, f"it needs {', '.join(_ALONE)}", whole=True):
        if None in row.values:
            raise row.error("has more values than the first line has names")
        batch = row.number("batch")
        if batch > _LARGEST_BATCH or batch != int(batch):
            raise row.error(f"must be a whole number of at most {_LARGEST_BATCH}, not {batch:g}", "batch")
        if row.values["model"] not in models:
            known = ", ".join(sorted(models))
            raise row.error(f"{row.values['model']!r} has no profile; there are: {known}", "model")
        try:
            found.append(Tenant(row.values["model"], int(batch), row.number("percent"), row.number("ms")))
        except InputError as error:
            if error.line is not None:
                raise
            raise row.error(error.problem, "ms" if error.field == "latency_ms" else error.field) from None
    return found
