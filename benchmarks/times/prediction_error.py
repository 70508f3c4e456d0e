"""A model slower than its profile says, on every server of it: how soon the guard acts, and what it saves.

    python -m benchmarks.times.prediction_error                     simulated: a minute
    python -m benchmarks.times.prediction_error --real 28 --kept FILE  and 28 cells on real Tritons
    python -m benchmarks.times.prediction_error --without-guard     a product that does nothing

A cell is a model, a rate, and a factor of the planned times, from the first request on or from second 20 on.
The planned P99 is 0.9 of the SLO. By brute force, without the guard: `breaks`, more than 1 % are late on the
planned share; `cured`, no more than that on the share of the shadow. Simulated cells are those of
`ctl simulate --guard --fault slower:`. Real ones (two to three minutes each), chosen by seed and every second
one in containers, have a model that works as long as its requests say, planned with its own measured times
(benchmarks/support/slower_model.py). Those that FILE has are not measured again.

The verdict is a redirect, or an event that says that nothing which stands by cures. `late` counts the
clients' answers above the SLO from the fault to the end, `alone` those without the guard. `broken` counts the
windows of 10 s, from 2 s after the verdict on, of which more than 1 % are late; in simulated ones also more
than of the same requests on the shadow's share from the beginning.
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from planning import StoppedClock, v100, workload

from benchmarks.harness import Figures, show, table
from benchmarks.support.slower_model import Rates, late, measured, served
from controlplane.domain.plan import Partition, Plan, Rule
from controlplane.latency.protocol import FloatArray
from controlplane.planning import registry
from controlplane.planning.protocol import PlanRequest
from controlplane.runtime.jobs.simulate import conditions_of
from controlplane.simulate.closed_loop.faults import Fault, Happened, Kind, Outcome
from controlplane.simulate.closed_loop.run import run as serve
from controlplane.simulate.engine import Scaled, Settings, simulate

FACTORS = (0.9, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0)
RATES_RPS = (20.0, 100.0, 400.0)
MODELS = {"alexnet": 40.0, "resnet50": 60.0, "vgg19": 120.0}
"""With an SLO that the share is chosen by."""
SUDDEN_S = 20.0
TIGHT = 0.9
"""The planned P99 in SLOs."""
AFTER_S, REAL_S = 60.0, 40.0
MOST_REAL_RPS = 100.0
"""More is too much for a Python backend with a part of a core."""
LONG_REQUESTS = 200_000.0
"""For the P99 by brute force."""

WINDOW_S = 10
SETTLED_S = 2.0
VERDICT_S = {20.0: 5.0, 100.0: 2.0, 400.0: 2.0}
SAID_S = 5.0
PROMISED = 0.01
SIMULATED = "simulated"
UNCURED = ("all there is", "times as long as planned", "a larger share is no faster")
"""What an event says where nothing that stands by cures."""


@dataclass(frozen=True)
class Case:
    """One cell."""

    model: str
    rate_rps: float
    factor: float
    sudden: bool

    @property
    def fault_s(self) -> float:
        return SUDDEN_S if self.sudden else 0.0

    @property
    def name(self) -> str:
        return f"{self.model} x{self.factor:g} {'sudden' if self.sudden else 'standing'}"


@dataclass(frozen=True)
class Found:
    """What happened in a cell; seconds are from the fault, None where it never came."""

    case: Case
    where: str
    breaks: bool
    cured: bool
    verdict_s: float | None
    said_s: float | None
    redirects: int
    late: int
    alone: int
    broken: int

    @property
    def missed(self) -> tuple[str, ...]:
        """The aims that it misses."""
        if not self.breaks:
            return ("moved",) if self.redirects else ()
        verdict_s = math.inf if self.verdict_s is None else self.verdict_s
        found = ["verdict"] if verdict_s > VERDICT_S[self.case.rate_rps] else []
        if self.cured and (self.broken or self.verdict_s is None):
            found.append("kept")
        if not self.cured and (self.said_s is None or self.said_s > SAID_S):
            found.append("said")
        return tuple(found)


def cases(models: Iterable[str]) -> Iterator[Case]:
    for model, rate, factor, sudden in product(models, RATES_RPS, FACTORS, (False, True)):
        yield Case(model, rate, factor, sudden)


def planned(model: str, rate_rps: float) -> Plan:
    """A plan of this workload alone, whose P99 is TIGHT of its SLO."""
    device, slo_ms = v100("ours"), MODELS[model]
    for _ in range(2):
        asked = (workload("w", model, slo_ms, rate_rps),)
        plan = registry.strategy("joint").plan(PlanRequest(asked, {"v100": device}, Rule.P99, StoppedClock()))
        ((_, partition),) = plan.partitions()
        slo_ms = round((partition.workloads[0].predicted.p99_ms or slo_ms) / TIGHT, 1)
    return plan


def on_share(plan: Plan, percent: float) -> Plan:
    """The plan with this share of its one partition, and no shadow."""

    def with_share(partition: Partition) -> Partition:
        return replace(partition, percent=percent, shadow=None)

    return replace(
        plan, gpus=tuple(replace(g, partitions=tuple(map(with_share, g.partitions))) for g in plan.gpus)
    )


def simulated(case: Case, *, guard: bool = True) -> Found:
    """A cell on simulated time."""
    plan, device = planned(case.model, case.rate_rps), v100("ours")
    ((_, partition),) = plan.partitions()
    assert partition.shadow is not None
    conditions, truth = conditions_of({"v100": device.profiles}), {"v100": device.latency}
    settings = Settings(case.fault_s + AFTER_S, seed=1)
    fault = Fault(Kind.SLOWER, case.model, case.fault_s, case.factor)

    def holds(percent: float) -> bool:
        slower = {"v100": Scaled(device.latency, case.factor)}
        long = Settings(max(settings.seconds, LONG_REQUESTS / case.rate_rps), seed=2)
        (seen,) = simulate(on_share(plan, percent), slower, long, conditions).workloads
        return seen.violations_percent <= 100.0 * PROMISED

    guarded, alone = (serve(plan, truth, settings, conditions, [fault], guard=on) for on in (guard, False))
    best = serve(on_share(plan, partition.shadow.percent), truth, settings, conditions, [fault], guard=False)
    verdict_s, said_s = verdicts(guarded.happened, case.fault_s)
    return Found(
        case,
        SIMULATED,
        breaks=not holds(partition.percent),
        cured=holds(partition.shadow.percent),
        verdict_s=verdict_s,
        said_s=said_s,
        redirects=sum(h.redirect and h.at_s >= case.fault_s for h in guarded.happened),
        late=late_since(guarded, case.fault_s),
        alone=late_since(alone, case.fault_s),
        broken=broken_windows(guarded, best, case.fault_s + (verdict_s or math.inf)),
    )


def real(case: Case, *, guard: bool, docker: bool) -> Found:
    """A cell on real servers; brute force is the same load without the guard, of MEASURED_S seconds."""
    rates = Rates(case.rate_rps, case.factor)
    planned, on_share, on_shadows = measured(rates, TIGHT, docker=docker)
    run = served(rates, planned, (case.fault_s, REAL_S), guard=guard, docker=docker)
    happened = [Happened(e.at_s, e.subject, e.reason, e.kind == "redirect") for e in run.events]
    verdict_s, said_s = verdicts(happened, run.fault_s)
    started = [r.started_s - run.fault_s for r in run.requests]
    is_late = [float(late([r], planned.slo_ms)) for r in run.requests]
    bins = range(int(REAL_S) + 1)
    sent, overdue = (np.histogram(started, bins, weights=w)[0] for w in (None, is_late))
    since = math.ceil(REAL_S if verdict_s is None else verdict_s + SETTLED_S)
    return Found(
        case,
        where(docker=docker),
        breaks=on_share > PROMISED,
        cured=on_shadows <= PROMISED,
        verdict_s=verdict_s,
        said_s=said_s,
        redirects=sum(h.redirect for h in happened),
        late=late(run.requests, planned.slo_ms),
        alone=round(on_share * len(run.requests)),
        broken=int((windows(overdue[since:]) > PROMISED * windows(sent[since:])).sum()),
    )


def real_cells(count: int, seed: int, kept: Path | None, *, guard: bool) -> list[Found]:
    """So many cells on real servers, each added to the file `kept`, and those that it has."""
    found = []
    if kept is not None and kept.exists():
        rows = map(json.loads, kept.read_text().splitlines())
        found = [Found(Case(**row.pop("case")), **row) for row in rows]
    known = {(one.case, one.where) for one in found}
    every = [*cases(["spin"])]
    drawn = random.Random(seed).sample(every, len(every))
    drawn = [case for case in drawn if case.rate_rps <= MOST_REAL_RPS]
    for n, case in enumerate(drawn[:count]):
        docker = n % 2 == 1
        if (case, where(docker=docker)) not in known:
            found.append(real(case, guard=guard, docker=docker))
            if kept is not None:
                with kept.open("a") as file:
                    file.write(json.dumps(asdict(found[-1])) + "\n")
    return found


def where(*, docker: bool) -> str:
    return "containers" if docker else "processes"


def verdicts(happened: Iterable[Happened], fault_s: float) -> tuple[float | None, float | None]:
    """The seconds from the fault to the verdict, and to the event that nothing which stands by cures."""
    since = [h for h in happened if h.at_s >= fault_s]
    moved = [h.at_s for h in since if h.redirect]
    said = [h.at_s for h in since if "redirected" not in h.text and any(word in h.text for word in UNCURED)]
    first = min(moved + said, default=None)
    return (
        None if first is None else first - fault_s,
        None if not said else said[0] - fault_s,
    )


def late_since(outcome: Outcome, second: float) -> int:
    return int(outcome.workloads[0].late[int(second) :].sum())


def broken_windows(outcome: Outcome, best: Outcome, verdict_s: float) -> int:
    """The windows after a verdict that broke their P99, and were worse than on the shadow's share."""
    if math.isinf(verdict_s):
        return 0
    seen, cure = outcome.workloads[0], best.workloads[0]
    since = math.ceil(verdict_s + SETTLED_S)
    sent, late, still = (windows(one[since:]) for one in (seen.sent, seen.late, cure.late))
    return int(((late > PROMISED * sent) & (late > still)).sum())


def windows(counts: FloatArray) -> FloatArray:
    """The sums over WINDOW_S seconds, one for each second that such a window begins with."""
    return np.convolve(counts, np.ones(WINDOW_S), "valid") if len(counts) >= WINDOW_S else np.zeros(0)


def seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def shown(found: Iterable[Found]) -> None:
    """Print a row a cell that was real, or where something breaks, moves or is missed."""
    made = table(
        "cells that break, move or miss an aim",
        *("cell", ">req/s", "servers", "breaks", "cured", ">verdict s", ">said s", ">redirects"),
        *(">late", ">alone", ">broken", "missed"),
    )
    for one in found:
        if one.where != SIMULATED or one.breaks or one.redirects or one.missed:
            made.add_row(
                one.case.name,
                f"{one.case.rate_rps:g}",
                one.where,
                "yes" if one.breaks else "no",
                "yes" if one.cured else "no",
                seconds(one.verdict_s),
                seconds(one.said_s),
                *map(str, (one.redirects, one.late, one.alone, one.broken)),
                ", ".join(one.missed),
            )
    show(made, width=150)


def judged(found: list[Found]) -> int:
    """Print the figures; return the exit code."""
    figures = Figures()
    for where in sorted({one.where for one in found}):
        own = [one for one in found if one.where == where]
        breaking = [one for one in own if one.breaks]
        figures.add(f"{where}: cells", len(own))
        # Some 65 % break in simulated time; a draw of few real cells may hold none.
        least = len(own) // 2 if where == SIMULATED else None
        figures.add(f"{where}: cells whose P99 breaks", len(breaking), at_least=least)
        for rate in RATES_RPS:
            at_rate = [one for one in breaking if one.case.rate_rps == rate]
            times_s = [math.inf if one.verdict_s is None else one.verdict_s for one in at_rate]
            if times_s:
                limit_s = VERDICT_S[rate]
                figures.add(f"{where}: verdict at {rate:g}/s, median", float(np.median(times_s)), "s")
                slow = sum(time_s > limit_s for time_s in times_s)
                figures.add(
                    f"{where}: later than {limit_s:g} s at {rate:g}/s, of {len(times_s)}", slow, at_most=0
                )
        cured = [one for one in breaking if one.cured]
        kept, said = (sum(aim in one.missed for one in breaking) for aim in ("kept", "said"))
        figures.add(f"{where}: not kept after the verdict, of {len(cured)} cured", kept, at_most=0)
        uncured = len(breaking) - len(cured)
        figures.add(f"{where}: not said within {SAID_S:g} s, of {uncured} not cured", said, at_most=0)
        moved = sum(one.redirects for one in own if not one.breaks)
        figures.add(f"{where}: redirects where no P99 breaks", moved, at_most=0)
        alone = sum(one.alone for one in breaking)
        figures.add(
            f"{where}: late answers where it breaks", sum(one.late for one in breaking), reference=alone
        )
    return figures.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--real", type=int, default=0, help="so many cells on real servers, chosen by seed")
    parser.add_argument("--only-real", action="store_true")
    parser.add_argument("--kept", type=Path, help="a file of those that were measured, to go on with")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", type=lambda text: text.split(","), default=[*MODELS])
    parser.add_argument("--without-guard", action="store_true")
    options = parser.parse_args()
    guard = not options.without_guard
    found = [] if options.only_real else [simulated(case, guard=guard) for case in cases(options.models)]
    if options.real:
        found += real_cells(options.real, options.seed, options.kept, guard=guard)
    shown(found)
    return judged(found)


if __name__ == "__main__":
    sys.exit(main())
