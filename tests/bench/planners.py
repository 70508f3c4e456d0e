"""Planners: GPUs, bound, violations, utilisation and CPU time against the references.

    .venv/bin/python tests/bench/planners.py [--long]

Short: Table 3 and 200 workloads. Long: 1,000 workloads under both rules too, and igniter's growth to 5,000.
References: iGniter (TPDS 34(3), 2023) and its prototype on the same lists; CPU times as asked of two cores.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

import numpy as np
import planning

from controlplane.domain.plan import Plan, Rule
from controlplane.domain.workload import Workload
from controlplane.planners import registry

HALF, P99 = Rule.HALF_SLO, Rule.P99


def timed(strategy: str, workloads: tuple[Workload, ...], rule: Rule, latency: str) -> tuple[Plan, float]:
    request = planning.request(workloads, rule=rule, latency=latency)
    plan = registry.strategy(strategy).plan
    if len(workloads) <= 200:
        plan(request)
    before = time.process_time()
    made = plan(request)
    return made, (time.process_time() - before) * 1000.0


def row(
    name: str, strategy: str, workloads: tuple[Workload, ...], rule: Rule, latency: str,
    gpus: int | None = None, milliseconds: float | None = None,
) -> None:  # fmt: skip
    plan, taken = timed(strategy, workloads, rule, latency)
    assert plan.totals is not None
    use = [w.predicted.utilisation or 0.0 for _, _, w in plan.placements()]
    low, middle, high = np.percentile(use, [5, 50, 95])
    bound = plan.totals.lower_bound_gpus
    print(
        f"{name:<24}{strategy:<9}{len(plan.gpus):>5}{gpus or '–':>6}"
        f"{f'{len(plan.gpus) / gpus:.2f}' if gpus else '–':>7}{bound or '–':>7}"
        f"{f'{100 * (len(plan.gpus) / bound - 1):.0f} %' if bound else '–':>7}"
        f"{plan.totals.percent:>9.1f}{len(plan.violations):>7}{len(plan.infeasible):>7}"
        f"{low:>7.2f}{middle:>6.2f}{high:>6.2f}{taken:>9.0f}{milliseconds or '–':>9}"
    )


def many(count: int) -> tuple[Workload, ...]:
    """The list of 1,000, repeated under new names."""
    listed = planning.published(1000)
    return tuple(
        replace(w, name=f"{w.name}x{n}", endpoint=f"{w.name}x{n}")
        for n in range(-(-count // 1000))
        for w in listed
    )[:count]


def main() -> None:
    print("GPUs against the reference; the bound and the gap to it; utilisation at 5, 50 and 95 %; CPU ms")
    print(
        f"{'case':<24}{'strategy':<9}{'GPUs':>5}{'ref':>6}{'ratio':>7}{'bound':>7}{'gap':>7}{'share %':>9}"
        f"{'broken':>7}{'infeas':>7}{'u05':>7}{'u50':>6}{'u95':>6}{'CPU ms':>9}{'ref ms':>9}"
    )
    table_1 = tuple(planning.workload(*w) for w in planning.TABLE_1)
    row("Table 1, half-SLO", "igniter", table_1, HALF, "igniter", 1)
    twelve = planning.published(12)
    for strategy, gpus in (("igniter", 6), ("ffd+", 5), ("ffd++", 6), ("joint", 6)):
        row("Table 3, half-SLO", strategy, twelve, HALF, "igniter", gpus)
    for count, gpus, joint in ((50, 18, None), (200, 72, 66)):
        row(f"{count}, half-SLO", "igniter", planning.published(count), HALF, "igniter", gpus)
        row(f"{count}, half-SLO", "joint", planning.published(count), HALF, "igniter", joint)
    for strategy in ("igniter", "ffd+", "ffd++"):
        row("Table 3, P99", strategy, twelve, P99, "ours")
    row("Table 3, P99", "joint", twelve, P99, "ours", 9, 50)
    row("50, P99", "joint", planning.published(50), P99, "ours")
    row("200, P99", "joint", planning.published(200), P99, "ours")
    row("1000, half-SLO", "igniter", planning.published(1000), HALF, "igniter", 368, 100)
    row("1000, half-SLO", "joint", planning.published(1000), HALF, "igniter", 341, 3000)
    if "--long" in sys.argv:
        row("1000, P99", "joint", planning.published(1000), P99, "ours", None, 3000)
        took = {n: timed("igniter", many(n), HALF, "igniter")[1] for n in (500, 5000)}
        power = np.log(took[5000] / took[500]) / np.log(10.0)
        print(
            f"igniter from 500 ({took[500]:.0f} ms) to 5,000 ({took[5000]:.0f} ms): m^{power:.2f} (aim 1.3)"
        )


if __name__ == "__main__":
    main()
