"""The skeleton of a spec: one workload for each model that can be planned, to be completed by the user."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.domain.survey import Finding, Readiness
from controlplane.report.printable import printable

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
        lines += [f"  # {one.model}: {one.readiness}: {line}" for line in one.note.splitlines()[:1]]
        if one.readiness is not Readiness.UNSUPPORTED:
            lines.append(
                f"  - {{name: {_quoted(one.model)}, model: {_quoted(one.model)}, "
                f"slo_ms: {_SLO_MS}, rate_rps: {_RATE_RPS}}}"
            )
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    """Return a name as YAML reads it as text: unquoted, `1` is a number and `no` is false."""
    return f'"{name}"'
