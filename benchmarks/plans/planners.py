"""Planners: GPUs, bound, violations, covers and CPU time against the references.

    python -m benchmarks.plans.planners [--long] [SECTION ...]

Sections: counts, covers, memory, fresh, promises; all unless named. Short: lists of 12, 50 and
200 workloads (`covers` 12 and 50), some minutes. Long: 1,000 workloads.
References: iGniter (TPDS 34(3), 2023) and its prototype on the same lists; CPU times as asked of two cores.
"""

import sys
import time
from dataclasses import replace
from itertools import product

import numpy as np
import planning

from benchmarks.harness import Figures, chosen
from benchmarks.support.covers import covers
from benchmarks.support.promises import promises
from controlplane.domain.plan import Plan, Rule, memory_used_mb
from controlplane.domain.workload import ShadowPolicy, ShadowWish, Workload
from controlplane.planning import registry
from controlplane.planning.exact.prove import prove

HALF, P99 = Rule.HALF_SLO, Rule.P99
FRESH_SIZES = (20, 50, 100, 200, 300)
MOST_GPUS = {(P99, 12): 7, (P99, 50): 18, (P99, 200): 64, (P99, 1000): 327}
MOST_GPUS |= {(HALF, 12): 6, (HALF, 50): 15, (HALF, 200): 57, (HALF, 1000): 296}
"""Of `joint` by rule and workloads: what it needed before."""
MOST_GPUS_READY = {(P99, 12): 7, (P99, 50): 18, (P99, 200): 71, (P99, 1000): 362}
"""The same where GPUs have a quarter of the memory and all shadows must be hot."""
FRESH_GPUS = {P99: 437, HALF: 384}
MOST_CPU_S = 3.0
"""Of a plan of 1,000."""


def timed(
    strategy: str, workloads: tuple[Workload, ...], rule: Rule, latency: str, repeat: bool = True
) -> tuple[Plan, float]:
    """A plan and its CPU milliseconds, warm."""
    request = planning.request(workloads, rule=rule, latency=latency)
    plan = registry.strategy(strategy).plan
    if repeat:
        plan(request)
    before = time.process_time()
    made = plan(request)
    return made, (time.process_time() - before) * 1000.0


# -- how many GPUs -----------------------------------------------------------------------------------------


def count_row(
    figures: Figures,
    name: str,
    strategy: str,
    workloads: tuple[Workload, ...],
    rule: Rule,
    latency: str,
    gpus: int | None = None,
    repeat: bool = True,
) -> None:
    """Print a case and take its GPUs as a figure; `gpus` are those of the reference."""
    plan, taken = timed(strategy, workloads, rule, latency, repeat)
    if strategy == "joint":
        plan = prove(plan, planning.request(workloads, rule=rule, latency=latency))
    assert plan.totals is not None
    bound = plan.totals.lower_bound_gpus
    what = f"{strategy}, apart" if all(w.isolated for w in workloads) else strategy
    print(
        f"{name:<20}{what:<14}{len(plan.gpus):>5}"
        f"{bound or '–':>7}{f'{100 * (len(plan.gpus) / bound - 1):.0f} %' if bound else '–':>7}"
        f"{plan.totals.percent:>9.1f}{len(plan.violations):>7}{len(plan.infeasible):>7}{taken:>9.0f}"
        f"  {plan.totals.stopped_by if bound else ''}"
    )
    shared = strategy == "joint" and what == strategy
    most = MOST_GPUS.get((rule, len(workloads))) if shared else None
    figures.add(f"{name}, {what}", len(plan.gpus), "GPUs", at_most=most, reference=gpus)
    if shared and len(workloads) == 1000:
        figures.add(f"{name}: CPU time", taken / 1000.0, "s", at_most=MOST_CPU_S)


def counts(long: bool, figures: Figures) -> None:
    print(
        "GPUs against the reference; the lower bound (12: proven) and the gap to it; CPU ms without a proof; "
        "P99 by our model, else by iGniter's"
    )
    print(
        f"{'case':<20}{'strategy':<14}{'GPUs':>5}{'bound':>7}{'gap':>7}{'share %':>9}"
        f"{'broken':>7}{'infeas':>7}{'CPU ms':>9}"
    )
    table_1 = tuple(planning.workload(*w) for w in planning.TABLE_1)
    count_row(figures, "Table 1, half-SLO", "igniter", table_1, HALF, "igniter", 1)
    twelve = planning.published(12)
    for strategy, gpus in (("igniter", 6), ("ffd+", 5), ("ffd++", 6), ("joint", 6)):
        count_row(figures, "Table 3, half-SLO", strategy, twelve, HALF, "igniter", gpus)
    for count, gpus, joint in ((50, 18, None), (200, 72, 66), (1000, 368, 341)):
        listed = planning.published(count)
        count_row(figures, f"{count}, half-SLO", "igniter", listed, HALF, "igniter", gpus)
        count_row(figures, f"{count}, half-SLO", "joint", listed, HALF, "igniter", joint, count < 1000)
        count_row(figures, f"{count}, half-SLO", "joint", apart(listed), HALF, "igniter", joint, False)
    for count in (12, 50, 200, 1000)[: 4 if long else 3]:
        listed, reference = planning.published(count), 9 if count == 12 else None
        count_row(figures, f"{count}, P99", "joint", listed, P99, "ours", reference, False)
        count_row(figures, f"{count}, P99", "joint", apart(listed), P99, "ours", reference, False)


def apart(workloads: tuple[Workload, ...]) -> tuple[Workload, ...]:
    """The same workloads, each with a queue of its own."""
    return tuple(replace(w, isolated=True) for w in workloads)


# -- what shadows take of the memory -------------------------------------------------------------------------


def memory(long: bool, figures: Figures) -> None:
    """GPUs with the memory that public numbers say the models take, by the shadows asked for."""
    print(
        "\nGPUs under P99 with the models' memory (tests/data/memory_v100.json), of a V100 and of one with a"
    )
    print("quarter of its memory, by the shadows asked for; hot ones of all, and the MB of the fullest GPU")
    print(f"{'workloads':<10}{'MB':>6}  {'shadows':<12}{'GPUs':>5}{'hot':>10}{'fullest':>8}{'CPU ms':>8}")
    for count, part, name in product((12, 50, 200, 1000)[: 4 if long else 3], (1.0, 0.25), planning.SHADOWS):
        plan, taken = with_memory(count, part, planning.SHADOWS[name])
        policies = [None if p.shadow is None else p.shadow.policy for _, p in plan.partitions()]
        fullest = max(sum(used.values()) for used in memory_used_mb(plan.gpus).values())
        hot, there = f"{policies.count(ShadowPolicy.HOT)}/{len(policies)}", plan.gpus[0].memory_mb or 0.0
        row = f"{count:<10}{there:>6.0f}  {name:<12}{len(plan.gpus):>5}{hot:>10}{fullest:>8.0f}{taken:>8.0f}"
        print(row, flush=True)
        ready = part < 1.0 and name in ("hot", "within 1 s")
        most = (MOST_GPUS_READY if ready else MOST_GPUS)[P99, count]
        kept = plan.verified and not plan.infeasible
        figures.add(f"{count}, {there:.0f} MB, {name}", len(plan.gpus), "GPUs", at_most=most if kept else 0)


def with_memory(count: int, part: float, wish: ShadowWish) -> tuple[Plan, float]:
    """A plan with such shadows where a GPU has this part of a V100's memory, and its CPU milliseconds."""
    device = planning.v100_with_memory()
    kind = device.pool.device
    kind = replace(kind, memory_mb=(kind.memory_mb or 0.0) * part)
    device = replace(device, pool=replace(device.pool, device=kind))
    asked = tuple(replace(w, shadow=wish) for w in planning.published(count))
    request = replace(planning.request(asked, latency="ours", rule=P99), devices={"v100": device})
    before = time.process_time()
    plan = registry.strategy("joint").plan(request)
    return plan, (time.process_time() - before) * 1000.0


# -- lists that no search was tuned on ----------------------------------------------------------------------


def fresh_lists() -> list[tuple[Workload, ...]]:
    """Five lists drawn from the 1,000 workloads, five of Table 3 with other rates and SLOs."""
    chance = np.random.default_rng(20261122)
    published, table = planning.published(1000), planning.published(12)
    drawn = [tuple(published[i] for i in chance.choice(1000, n, replace=False)) for n in FRESH_SIZES]
    return drawn + [_other_terms(table, n, chance) for n in FRESH_SIZES]


def _other_terms(
    table: tuple[Workload, ...], count: int, chance: np.random.Generator
) -> tuple[Workload, ...]:
    rates, slos = chance.uniform(0.2, 1.2, count), chance.uniform(0.8, 1.6, count)
    return tuple(
        planning.workload(
            f"w{i}",
            one.model,
            round(one.slo_ms * float(slos[i]), 1),
            round(one.rate_rps * float(rates[i]), 1),
        )
        for i in range(count)
        for one in (table[i % len(table)],)
    )


def fresh(long: bool, figures: Figures) -> None:
    """GPUs on ten lists, of `joint` and of iGniter."""
    lists = fresh_lists()
    print(
        f"\nGPUs on ten other lists: {', '.join(map(str, FRESH_SIZES))} workloads drawn from the 1,000, and"
    )
    print("as many made from Table 3 with rates x 0.2 to 1.2 and SLOs x 0.8 to 1.6")
    for strategy, rule in (("igniter", HALF), ("joint", HALF), ("joint", P99)):
        latency = "ours" if rule is P99 else "igniter"
        plans = [timed(strategy, workloads, rule, latency, repeat=False)[0] for workloads in lists]
        gpus = [len(plan.gpus) for plan in plans]
        refused = sum(len(plan.infeasible) for plan in plans)
        row = "".join(f"{count:>5}" for count in gpus)
        print(f"{strategy:<9}{rule:<10}{row}  sum {sum(gpus)}, infeasible {refused}")
        most = FRESH_GPUS[rule] if strategy == "joint" else None
        figures.add(f"ten other lists, {strategy}, {rule}", sum(gpus), "GPUs", at_most=most)


SECTIONS = {
    "counts": counts,
    "covers": covers,
    "memory": memory,
    "fresh": fresh,
    "promises": promises,
}


def main() -> int:
    figures = Figures()
    for name in chosen(sys.argv[1:], SECTIONS):
        SECTIONS[name]("--long" in sys.argv, figures)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
