"""Specs as values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.domain.errors import InputError
from controlplane.domain.workload import GpuRequest, Workload
from controlplane.domain.workload import Spec as ParsedSpec
from controlplane.files.documents import Document, read
from controlplane.files.mistakes import nearest
from controlplane.files.plans import parse_spec


@dataclass(frozen=True)
class Spec:
    """Workloads, and the GPUs that a plan may use.

    Made with `read`, `of`, `scaled` and `changed`, which raise InputError with file, line and field of the
    first mistake, as `ctl plan` does.
    """

    parsed: ParsedSpec
    document: Document

    @classmethod
    def read(cls, path: Path | str) -> Spec:
        """Read a spec file, YAML or JSON."""
        return cls._of(read(Path(path)))

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Spec:
        """Take a spec's content, with the keys of a spec file."""
        text = json.dumps(content, indent=2)
        return cls._of(Document("<spec>", text, json.loads(text)))

    @classmethod
    def _of(cls, document: Document) -> Spec:
        return cls(parse_spec(document), document)

    @property
    def gpus(self) -> tuple[GpuRequest, ...]:
        """The GPU types that a plan may use."""
        return self.parsed.gpus

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The workloads, in the order of the file."""
        return self.parsed.workloads

    def scaled(self, *, slo: float = 1.0, rate: float = 1.0) -> Spec:
        """Return the spec with all SLOs and rates multiplied by these factors."""
        return self._with_workloads(
            [
                {**w, "slo_ms": w["slo_ms"] * slo, "rate_rps": w["rate_rps"] * rate}
                for w in self.document.content["workloads"]
            ]
        )

    def changed(self, workload: str, **fields: Any) -> Spec:
        """Return the spec with other values in some fields of one workload, such as `slo_ms=20`."""
        names = [w.name for w in self.workloads]
        if workload not in names:
            raise InputError(f"no workload {workload!r}{nearest(workload, names)}", field="workload")
        at = names.index(workload)
        workloads = list(self.document.content["workloads"])
        workloads[at] = {**workloads[at], **fields}
        return self._with_workloads(workloads)

    def _with_workloads(self, workloads: list[dict[str, Any]]) -> Spec:
        return Spec.of({**self.document.content, "workloads": workloads})
