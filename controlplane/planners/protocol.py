"""The one protocol of all strategies: plan(PlanRequest) -> Plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from controlplane.domain.device import GpuPool
from controlplane.domain.plan import Plan, Rule
from controlplane.domain.profile import Profile
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import LatencyModel
from controlplane.planners.inss.bda import Bda
from controlplane.ports import Clock

if TYPE_CHECKING:
    from controlplane.planners.inss.policy import Weights


@dataclass(frozen=True, slots=True)
class Device:
    """What a strategy knows about one GPU type: how many there are, how fast, and what was measured.

    `latency` speaks for the models of `profiles`, which maps a model's name to its profile.
    """

    pool: GpuPool
    latency: LatencyModel
    profiles: Mapping[str, Profile]


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A question to a strategy. `devices` maps a GPU type to what is known about it.

    `iterations` is the search budget; `budget_s` only a ceiling, against `clock`. The same request with
    the same seed gives the same plan, unless the ceiling stopped it (Totals.stopped_by says so).
    `previous` is the plan that runs now: among plans of equal cost the one with the fewest moves wins.
    `bda` and `policy` are inss's: how it decides batches, and the trained policy it begins with, if any.
    """

    workloads: tuple[Workload, ...]
    devices: Mapping[str, Device]
    rule: Rule
    clock: Clock
    quantile: float = 0.95
    seed: int = 1
    iterations: int | None = None
    budget_s: float | None = None
    previous: Plan | None = None
    bda: Bda = Bda.EXACT
    policy: Weights | None = None


class Strategy(Protocol):
    """One way to plan. Values in, values out."""

    @property
    def name(self) -> str:
        """What `--strategy` calls it."""

    @property
    def rule(self) -> Rule:
        """The rule it plans for unless told otherwise."""

    @property
    def latency_model(self) -> str:
        """The latency model it plans with unless told otherwise."""

    def plan(self, request: PlanRequest) -> Plan:
        """A plan for every workload that can be held; the others in `infeasible`, with reasons."""
