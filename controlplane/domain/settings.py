"""What `--set KEY=VALUE` may say in a call: the keys are the fields, inner records' after a dot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Le

from controlplane.domain.plan import Rule
from controlplane.domain.server_options import ServerOptions
from controlplane.domain.serving import Serving
from controlplane.domain.units import Count, Percent
from controlplane.domain.workload import LARGEST_COVER

NOTES: Mapping[str, str] = {
    "rule": "P99 within the SLO, or execution within half of it [the strategy's]",
    "latency": "the model of execution times and interference [the strategy's]",
    "quantile": "of the execution times to plan with; 0.5 is the median",
    "covers": "every shadow holds though its model is so many times slower, at more GPUs",
    "seed": "same seed, same plan",
    "iterations": "attempts to empty a GPU (joint), rounds (inss)",
    "budget_s": "the longest search; the plan says if it was cut",
    "late_binding": "joint alone: a plan may rely on requests that wait at the gateway for their turn",
    "inss.bda": "research: the search for batches tries each one, or follows the paper",
    "inss.policy": "research: a policy of `ctl train`, or none for the search alone [built in]",
    "gpulet.as_coded": "research: the authors' code where it differs from the paper",
    "gpulet.as_printed": "research: turns also for a model with several gpulets, which no pool can serve",
    "percents": "the shares to measure [11 points are chosen]",
    "batches": "the batches to measure [11 points are chosen]",
    "resume": "continue an interrupted run",
    "load_timeout_s": "a start has failed after so long without progress",
    "triton_args": "--NAME=VALUE for tritonserver; the spec's triton_args for a fleet",
    "env.{NAME}": "for the servers' environment; the spec's env for a fleet",
}
"""What `--set help` says of keys; those of the section `serve` are in docs/spec.md."""


@dataclass(frozen=True, slots=True)
class InssSettings:
    """The strategy inss alone."""

    bda: Literal["exact", "paper"] | None = None
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class GpuletSettings:
    """The strategies of gpulet's authors alone."""

    as_coded: bool = False
    as_printed: bool = False


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """How to plan; None is the strategy's own default. `serve` is the spec's section."""

    rule: Rule | None = None
    latency: str | None = None
    quantile: float = 0.95
    covers: Annotated[float, Ge(1), Le(LARGEST_COVER)] | None = None
    seed: Annotated[int, Ge(0)] = 1
    iterations: Annotated[int, Ge(0)] | None = None
    budget_s: Annotated[float, Ge(0)] | None = None
    late_binding: bool = False
    inss: InssSettings = InssSettings()
    gpulet: GpuletSettings = GpuletSettings()
    serve: Serving | None = None


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How a fleet is served, in place of what its plan's section says."""

    serve: Serving = field(default_factory=Serving)


@dataclass(frozen=True, slots=True)
class StartSettings:
    """How to start temporary servers."""

    load_timeout_s: Annotated[float, Ge(1)] | None = None
    triton_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def options(self) -> ServerOptions:
        """The servers' options."""
        return ServerOptions(self.triton_args, self.env)


@dataclass(frozen=True, slots=True)
class ProfileSettings(StartSettings):
    """How to measure; None: chosen by the product."""

    percents: tuple[Percent, ...] | None = None
    batches: tuple[Count, ...] | None = None
    resume: bool = True
