"""Survey of a model repository: what can be profiled, what needs inputs, what is not supported and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from controlplane.domain import units
from controlplane.domain.errors import InputError
from controlplane.domain.tensors import Finding, Readiness, TensorSpec
from controlplane.files.models import read_completed
from controlplane.profiler.requests import requests_for
from controlplane.render.config import (
    backend_of,
    batch_limit,
    input_specs,
    instances_note,
    iterates,
    keeps_sequences,
)
from controlplane.render.source import SourceModel, all_models, read_source, read_written
from controlplane.report.words import printable
from controlplane.runtime.jobs.completing import Completer, lacks_backend


def survey(repository: Path, completer: Completer) -> tuple[Finding, ...]:
    """Look at every model of a repository; a Triton completes the configurations that need it.

    Raises InputError where there is no model, and as `Completer.complete` does.
    """
    models = all_models(repository)
    unreadable = {model: problem for model in models if (problem := _unreadable(repository, model))}
    readable = [model for model in models if model not in unreadable]
    refused = unreadable | {
        model: f"Triton does not load it: {said}"
        for model, said in completer.complete(repository, readable).items()
    }
    return tuple(
        # Its name may be anything: a line of its own in the spec's comments would be a workload.
        Finding(printable(model, layout=""), Readiness.UNSUPPORTED, printable(refused[model]))
        if model in refused
        else finding(repository, model, completer.backends, on_gpu=not completer.on_core)
        for model in models
    )


def finding(
    repository: Path, model: str, backends: frozenset[str] | None = None, *, on_gpu: bool = False
) -> Finding:
    """Judge one model whose configuration is as complete as it can be; `backends` as in `Completer`."""
    try:
        source = read_source(repository, model)
    except InputError as error:
        return Finding(model, Readiness.UNSUPPORTED, _words(error))
    if backends is not None and (missing := _missing_backend(source, backends)) is not None:
        present = ", ".join(sorted(backends)) or "none"
        return Finding(
            model,
            Readiness.UNSUPPORTED,
            f"the Triton here has no backend {missing} (it has: {present}): install it, or serve the file by "
            "another one; docs/models.md shows an ONNX file in the Python backend",
        )
    inputs = input_specs(source.config)
    notes = (_note(source, inputs), instances_note(source.config, on_gpu=on_gpu))
    readiness, note = Readiness.READY, "; ".join(filter(None, notes))
    try:
        requests_for(source)
    except InputError as error:
        readiness, note = Readiness.NEEDS_INPUTS, _words(error)
    completed = read_completed(Path(source.directory)) is not None
    return Finding(model, readiness, note or None, batch_limit(source.config), completed, inputs)


def _missing_backend(source: SourceModel, backends: frozenset[str]) -> str | None:
    """Return a backend that the model or one that it executes needs, and that is not here; None for none."""
    if lacks_backend(source.config, Path(source.directory), backends):
        return backend_of(source.config)
    found = (_missing_backend(one, backends) for one in source.composing)
    return next((one for one in found if one is not None), None)


def _unreadable(repository: Path, model: str) -> str | None:
    """Return what is wrong with a model's name or written configuration; None where nothing is."""
    try:
        units.safe_name(model, "model")
    except InputError as error:
        return f"{error.problem}; rename its folder"
    try:
        read_written(repository / model)
    except InputError as error:
        return _words(error)
    return None


def _words(error: InputError) -> str:
    """Return a message with the file's name, line and field."""
    file = f"{Path(error.file).name}{f':{error.line}' if error.line else ''}: " if error.file else ""
    return f"{file}{f'{error.field}: ' if error.field else ''}{error.problem}"


def _note(source: SourceModel, inputs: Sequence[TensorSpec]) -> str:
    if source.composing:
        names = ", ".join(one.name for one in source.composing)
        return f"executes {names}: measured as a whole, with them in its server"
    if keeps_sequences(source.config):
        return "keeps sequences: each stays on its server, and a server that dies takes its sequences along"
    if iterates(source.config):
        return "executes a request step by step: measured one request at a time"
    texts = [spec.name for spec in inputs if spec.datatype == "BYTES" and not spec.optional]
    if texts and not source.config.model_warmup:
        return (
            f"{', '.join(texts)}: measured with an English sentence; `ctl profile --input-data "
            f"{source.name}:FILE` measures with real values"
        )
    return ""


_SLO_MS = 100
_RATE_RPS = 10


def skeleton(findings: Sequence[Finding], repository: str, device: str) -> str:
    """Return the YAML of a spec. The SLOs and rates in it are placeholders.

    A model that is not supported is listed in a comment, with the reason.
    """
    named = printable(repository, layout="")
    lines = [
        f"# Made by `ctl init {named}`. Write each workload's SLO and rate: these are placeholders.",
        "# Then: `ctl profile`, `ctl plan`, `ctl apply`. Every field: docs/spec.md",
        "schema_version: 1",
        "gpus:",
        f"  - {{type: {device}}}",
        "workloads:",
    ]
    for one in findings:
        lines += [f"  # {one.model}: {one.state}: {line}" for line in (one.note or "").splitlines()[:1]]
        if one.state is not Readiness.UNSUPPORTED:
            lines.append(
                f"  - {{name: {_quoted(one.model)}, model: {_quoted(one.model)}, "
                f"slo_ms: {_SLO_MS}, rate_rps: {_RATE_RPS}}}"
            )
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    """Return a name as YAML reads it as text: unquoted, `1` is a number and `no` is false."""
    return f'"{name}"'
