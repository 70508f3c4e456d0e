"""What one SLO for an application would save, whose stages a client calls one after the other.

    python -m benchmarks.plans.applications

Chains of models of the V100 catalogue under one SLO, by `joint` under P99: the GPUs and the percent of them
in use where the SLO is split equally, in proportion to the stages' times, by the best split of a grid, and by
the best split when only the P99 of the sum, simulated, has to keep it. The simulation runs stage by stage: a
stage's answers are the next one's arrivals, in the bursts in which batches end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import planning

from controlplane.domain.plan import Plan, Rule
from controlplane.domain.workload import ShadowPolicy, ShadowWish
from controlplane.planning import registry
from controlplane.planning.protocol import PlanRequest
from controlplane.simulate.arrivals import Trace
from controlplane.simulate.engine import Settings, simulate

LOADS = ((60.0, 100.0), (100.0, 100.0), (100.0, 300.0), (200.0, 500.0))
CASES = (
    *((chain, *load) for chain in (("ssd", "resnet50"), ("resnet50", "vgg19")) for load in LOADS),
    (("ssd", "alexnet", "vgg19"), 90.0, 100.0),
)
"""Stages, SLO in ms, and requests per second."""
PARTS, SECONDS = 10, 60.0
SLACK = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
DEVICE = planning.v100("ours", 24)
JOINT = registry.strategy("joint")
Split = tuple[float, ...]


def planned(chain: Sequence[str], rate_rps: float, slos_ms: Sequence[float]) -> Plan | None:
    """The verified plan; None where a stage finds no place."""
    none = ShadowWish(ShadowPolicy.NONE)
    asked = tuple(
        replace(planning.workload(model, model, slo_ms, rate_rps), shadow=none)
        for model, slo_ms in zip(chain, slos_ms, strict=True)
    )
    plan = JOINT.plan(PlanRequest(asked, {"v100": DEVICE}, Rule.P99, planning.StoppedClock()))
    return plan if plan.verified and not plan.infeasible else None


def size(plan: Plan | None) -> tuple[float, float]:
    """GPUs, and the percent of them in use."""
    if plan is None:
        return np.inf, np.inf
    return len(plan.gpus), sum(p.percent for _, p in plan.partitions())


def p99_of_sum(plan: Plan, chain: Sequence[str], rate_rps: float) -> float:
    """Of requests that run through all stages, in ms."""
    chance = np.random.default_rng(1)
    begin_s = np.sort(chance.uniform(0.0, SECONDS, chance.poisson(SECONDS * rate_rps)))
    arrive_s, demands = begin_s, {}
    for model in chain:
        order = np.argsort(arrive_s, kind="stable")
        demands[model] = Trace(tuple(arrive_s[order].tolist()))
        waiting = {other: demands.get(other, Trace(())) for other in chain}
        settings = Settings(seconds=2.0 * SECONDS, demands=waiting, answers=10_000_000)
        answers = [
            a for a in simulate(plan, {"v100": DEVICE.latency}, settings).answers if a.workload == model
        ]
        answers.sort(key=lambda a: a.arrival_ms)
        arrive_s = arrive_s.copy()
        arrive_s[order] += np.array([a.latency_ms for a in answers]) / 1000.0
    return float(np.percentile(arrive_s - begin_s, 99) * 1000.0)


def splits(stages: int) -> Iterator[Split]:
    """Parts of one, in tenths."""
    for cut in np.ndindex(*(PARTS,) * (stages - 1)):
        rest = PARTS - sum(cut)
        if rest > 0 and all(cut):
            yield (*(c / PARTS for c in cut), rest / PARTS)


def best(chain: Sequence[str], rate_rps: float, slo_ms: float) -> Plan | None:
    """The smallest plan of all splits."""
    plans = (planned(chain, rate_rps, [slo_ms * part for part in split]) for split in splits(len(chain)))
    return min(plans, key=size)


def compared(chain: Sequence[str], slo_ms: float, rate_rps: float) -> None:
    """Print one line; `sum`: the P99 of all stages together under the best split."""
    alone_ms = [min(p.execution_ms for p in DEVICE.profiles[model].points if p.batch == 1) for model in chain]
    equal = planned(chain, rate_rps, [slo_ms / len(chain)] * len(chain))
    proportional = planned(chain, rate_rps, [slo_ms * t / sum(alone_ms) for t in alone_ms])
    split = best(chain, rate_rps, slo_ms)
    looser = [plan for factor in SLACK if (plan := best(chain, rate_rps, factor * slo_ms)) is not None]
    summed = min(
        (plan for plan in looser if p99_of_sum(plan, chain, rate_rps) <= slo_ms), key=size, default=None
    )
    cells = "".join(f"{'{:.0f} {:.1f}'.format(*size(p)):>12}" for p in (equal, proportional, split, summed))
    seen = f"{p99_of_sum(split, chain, rate_rps):.0f}" if split is not None else "-"
    print(f"{' > '.join(chain):<24}{slo_ms:>6.0f}{rate_rps:>6.0f}{cells}{seen:>10}", flush=True)


def main() -> int:
    heads = ("equal", "by time", "best", "P99 of sum")
    print(f"{'stages':<24}{'SLO':>6}{'rate':>6}" + "".join(f"{h:>12}" for h in heads) + f"{'sum, ms':>10}")
    for case in CASES:
        compared(*case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
