"""iGniter's Fig 17 on real servers: the P99 of each second while a wrong prediction is repaired.

    .venv/bin/python -m benchmarks.serving.figure17 [--factor 1.6] [--rate 100] [--plot FILE.svg]

The model is slower than planned from the first request on (benchmarks/support/slower_model.py). Its planned
times are measured first, as for the cells of `times.prediction_error`. In the paper W1's P99 is 15.6 ms of
an SLO of 10 ms in the first second; clients are redirected after 1.5 s, then it holds.
Exits 1 where no redirect comes within the paper's time, or the P99 of what follows is above the SLO.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.harness import Figures
from benchmarks.support.slower_model import Planned, Rates, Served, measured, served

SECONDS = 12
TIGHT = 0.9
PAPER_REDIRECT_S, PAPER_FIRST = 1.5, 1.56
"""From the start, and the P99 of the first second in SLOs."""
BACKLOG_S = 1.0


def p99_by_second(run: Served, slo_ms: float) -> list[float]:
    """The P99 in SLOs of the requests sent in each second since the fault."""
    sent_s = np.array([r.started_s - run.fault_s for r in run.requests])
    took = np.array([r.latency_ms for r in run.requests]) / slo_ms
    return [float(np.quantile(took[sent_s.astype(int) == second], 0.99)) for second in range(SECONDS)]


def plot(path: Path, ours: list[float], redirect_s: float) -> None:
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    axes.axhline(1.0, color="black", linestyle="--", linewidth=0.8, label="SLO")
    axes.plot(np.arange(SECONDS) + 0.5, ours, marker="o", color="tab:blue", label="P99, ours")
    axes.plot([0.5], [PAPER_FIRST], marker="s", linestyle="none", color="tab:orange", label="P99, paper")
    for at_s, colour, name in (
        (redirect_s, "tab:blue", f"redirect, ours: {redirect_s:.1f} s"),
        (PAPER_REDIRECT_S, "tab:orange", f"redirect, paper: {PAPER_REDIRECT_S:g} s"),
    ):
        axes.axvline(at_s, color=colour, linestyle=":", label=name)
    axes.set(xlabel="seconds", ylabel="P99 of each second, SLOs", xlim=(0, SECONDS), ylim=(0, None))
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def judged(planned: Planned, run: Served, path: Path | None) -> int:
    """Print and draw the figure; return the exit code."""
    ours = p99_by_second(run, planned.slo_ms)
    moved = [e.at_s - run.fault_s for e in run.events if e.kind == "redirect"]
    redirect_s = min(moved, default=float("inf"))
    print(f"SLO {planned.slo_ms:.1f} ms; P99 of each second in SLOs: {', '.join(f'{p:.2f}' for p in ours)}")
    after = [r.latency_ms for r in run.requests if r.started_s - run.fault_s > redirect_s + BACKLOG_S]
    figures = Figures()
    figures.add("P99 of the first second", ours[0], "SLOs", reference=PAPER_FIRST)
    figures.add("redirect", redirect_s, "s", at_most=PAPER_REDIRECT_S, reference=PAPER_REDIRECT_S)
    p99 = float(np.quantile(after, 0.99)) / planned.slo_ms if after else float("nan")
    figures.add(f"P99 from {BACKLOG_S:g} s after it on", p99, "SLOs", at_most=1.0, reference=1.0)
    if path is not None:
        plot(path, ours, redirect_s)
    return figures.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--factor", type=float, default=1.6)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    rates = Rates(options.rate, options.factor)
    planned, _, _ = measured(rates, TIGHT, docker=False)
    run = served(rates, planned, (0.0, float(SECONDS)), guard=True, docker=False)
    return judged(planned, run, options.plot)


if __name__ == "__main__":
    sys.exit(main())
