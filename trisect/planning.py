"""Specs as values; planning, verification and simulation as functions of values."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan as PlanValue
from controlplane.domain.plan import Rule, Violation
from controlplane.domain.profile import Profile
from controlplane.domain.settings import PlanSettings
from controlplane.domain.workload import GpuRequest, Workload
from controlplane.domain.workload import Spec as ParsedSpec
from controlplane.files.documents import Document, read, versioned
from controlplane.files.mistakes import nearest
from controlplane.files.plans import parse_spec, read_plan, write_plan
from controlplane.files.writing import to_json
from controlplane.planning.registry import DEFAULT
from controlplane.runtime import SystemClock
from controlplane.runtime.devices import known_profiles
from controlplane.runtime.jobs import simulate as simulation
from controlplane.runtime.jobs.plan import Choices, make_plan, verify_plan
from controlplane.simulate.result import SimulationResult


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


PROFILES = "profiles"
"""The folder of the user's own profiles, beside the built-in catalogues. It may be missing."""


@dataclass(frozen=True, slots=True)
class Plan(PlanValue):
    """The GPUs, shares and batches of a spec's workloads, with predictions."""

    @classmethod
    def of(cls, value: PlanValue) -> Plan:
        """Return the same plan with the methods of this class."""
        return cls(**{field.name: getattr(value, field.name) for field in fields(value) if field.init})

    @classmethod
    def read(cls, path: Path | str) -> Plan:
        """Read a plan file. Raises InputError naming file, line and field."""
        return cls.of(read_plan(Path(path))[0])

    def write(self, path: Path | str) -> None:
        """Write the file that `ctl apply` reads, in one step."""
        write_plan(Path(path), self)

    def to_json(self) -> str:
        """Return the content of the plan's file."""
        return to_json(versioned(self))


def plan(
    spec: Spec,
    *,
    strategy: str = DEFAULT,
    rule: Rule | None = None,
    latency_model: str | None = None,
    quantile: float = 0.95,
    seed: int = 1,
    budget_s: float | None = None,
    previous: PlanValue | None = None,
    profiles: Path | str = PROFILES,
) -> Plan:
    """Choose the GPU, share, batch and neighbours of every workload, as `ctl plan` does.

    `quantile` of the execution times is planned with; None for `rule` and `latency_model` is the strategy's
    own. The search ends after `budget_s` seconds. From `previous` as few workloads move as the cost allows.
    Workloads without a place are in `infeasible`; raises InputError for a spec or option that is wrong.
    """
    return Plan.of(
        make_plan(
            spec.parsed,
            spec.document,
            Choices(
                strategy, PlanSettings(rule, latency_model, quantile=quantile, seed=seed, budget_s=budget_s)
            ),
            profiles=Path(profiles),
            cores=len(os.sched_getaffinity(0)),
            clock=SystemClock(),
            previous=previous,
        ).plan
    )


def verify(plan: PlanValue, *, profiles: Path | str = PROFILES) -> tuple[Violation, ...]:
    """Return the promises that a plan breaks by the present profiles.

    Raises InputError where a profile is missing.
    """
    return verify_plan(plan, Path(profiles))


def simulate(
    plan: PlanValue,
    *,
    seconds: float = 100.0,
    seed: int = 1,
    truth: str | None = None,
    arrivals: Sequence[str] = (),
    profiles: Path | str = PROFILES,
) -> SimulationResult:
    """Simulate a plan under load, as `ctl simulate` does.

    `truth` is the latency model that servers follow: None for the plan's own, a name, `NAME*1.1` for one
    that is 10 % slower, or a folder of profiles. `arrivals` holds `poisson`, `constant` or a trace's file,
    each for all workloads or as `WORKLOAD=...`; empty means as the spec says. Raises InputError naming the
    option.
    """
    return simulation.run(plan, simulation.Asked(Path(profiles), truth, arrivals, seconds, seed))


def profiles(device: str, directory: Path | str = PROFILES) -> Mapping[str, Profile]:
    """Return the profiles of a device type by model: the built-in ones, and the user's own in their place.

    Raises InputError for a file that is not a profile.
    """
    return known_profiles(device, Path(directory))
