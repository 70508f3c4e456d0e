"""The one protocol of all strategies: plan(PlanRequest) -> Plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from controlplane.domain.device import GpuPool
from controlplane.domain.plan import Plan, Rule
from controlplane.domain.profile import Profile
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import LatencyModel
from controlplane.ports import Clock


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU type: how many there are, how fast they are, and what was measured on them.

    `latency` speaks for the models of `profiles`, which maps a model's name to its profile.
    """

    pool: GpuPool
    latency: LatencyModel
    profiles: Mapping[str, Profile]


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The question that a plan answers. `devices` maps a GPU type to what is known about it.

    The same request with the same seed gives the same plan, unless the limit `budget_s`, against `clock`,
    stopped the strategy (`Totals.stopped_by` says so). `previous` is the plan that runs now: among plans of
    equal cost the one with the fewest moves wins. A strategy's own options are not part of the question.
    """

    workloads: tuple[Workload, ...]
    devices: Mapping[str, Device]
    rule: Rule
    clock: Clock
    quantile: float = 0.95
    seed: int = 1
    budget_s: float | None = None
    previous: Plan | None = None

    @property
    def deciding_quantile(self) -> float | None:
        """The quantile of execution times that counts; None under half-SLO, where means count."""
        return self.quantile if self.rule is Rule.P99 else None


@dataclass(frozen=True, slots=True)
class OptionFile:
    """A file that a strategy's option names; `read` is called by the strategy alone."""

    name: str
    read: Callable[[], bytes]


class Strategy(Protocol):
    """One way to plan. Values in, values out."""

    @property
    def name(self) -> str:
        """What `--strategy` calls it."""

    @property
    def rule(self) -> Rule:
        """The rule it plans for by default."""

    @property
    def latency_model(self) -> str:
        """The latency model it plans with by default."""

    def plan(self, request: PlanRequest) -> Plan:
        """A plan for every workload that can be held; the others in `infeasible`, with reasons."""
