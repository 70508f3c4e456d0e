"""A fleet of real Tritons that follows its load: times of its changes, and a plot.

`.venv/bin/python -m benchmarks.following [--plot FILE]` (3 minutes). Poisson requests at 25/s through the
gateway, then at twice, 3.4 times and 0.8 times that rate; see tests/support/following_rig.py. Exits 1 where
a request failed, the doubled rate took over 20 s or the next one over 30 s.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from following_rig import MODEL, SLO_MS, Followed, Layout, followed, following_host
from sleeping_triton import Served

STEPS = ((50.0, 60.0), (85.0, 90.0), (20.0, 120.0))
AIMS_S = (20.0, 30.0, float("inf"))
WINDOW_S = 5
HELD_S = 15.0
"""A reader of the plot sees what a plan brought."""


def capacity_rps(layout: Layout) -> float:
    """What these servers answer at most: the model sleeps the same time at each share."""
    return sum(Served(batch, MODEL.instances, MODEL.delay_us).capacity_rps for _, _, batch in layout)


def plot(found: Followed, path: Path) -> None:
    """Rate, capacity, P99, shares and GPUs over time."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    answers = sorted((r.started_s, r.latency_ms) for r in found.load.requests)
    sent_s, latency_ms = np.array(answers).T
    begin_s = sent_s[0]
    sent_s = sent_s - begin_s
    number = int(sent_s[-1] // WINDOW_S)
    at = (sent_s // WINDOW_S).astype(int)
    rate = np.bincount(at)[:number] / WINDOW_S
    p99 = [np.percentile(latency_ms[at == i], 99) for i in range(number)]
    edges = np.arange(number + 1) * WINDOW_S
    layouts = [found.layout, *(step.layout for step in found.steps)]
    changed_s = [0.0, *(step.at_s + step.took_s - begin_s for step in found.steps), edges[-1]]
    figure = Figure(figsize=(11, 9), layout="constrained")
    rates, p99s, shares, cores = figure.subplots(4, 1, sharex=True)
    rates.stairs(rate, edges, color="grey", label="requests seen")
    rates.stairs(list(map(capacity_rps, layouts)), changed_s, lw=1.5, label="capacity of the servers")
    p99s.stairs(p99, edges, lw=1.5, label="P99")
    p99s.axhline(SLO_MS, color="black", lw=0.8, ls=":", label="SLO")
    for core, style in zip(sorted({gpu for one in layouts for gpu, _, _ in one}), ("-", "--"), strict=False):
        own = [sum(percent for gpu, percent, _ in one if gpu == core) for one in layouts]
        shares.stairs(own, changed_s, lw=1.5, ls=style, label=f"share of {core}")
    cores.stairs(
        [len({gpu for gpu, _, _ in one}) for one in layouts], changed_s, lw=1.5, label="cores in use"
    )
    for step in found.steps:
        changes_s = step.at_s - begin_s
        note = f" {step.rate_rps:g}/s: plan\n after {step.took_s:.0f} s"
        cores.text(changes_s, 2.9, note, va="top", fontsize="small")
        for axes in (rates, p99s, shares, cores):
            axes.axvline(changes_s, color="grey", lw=0.8, ls=":", zorder=0)
            axes.axvspan(changes_s, changes_s + step.took_s, color="whitesmoke", zorder=-1)
    rates.set(ylabel=f"requests/s ({WINDOW_S} s)")
    p99s.set(ylabel=f"P99 of {WINDOW_S} s, ms", ylim=(0.0, None))
    shares.set(ylabel="share of a core, %", ylim=(0.0, 105.0))
    cores.set(
        ylabel="cores", ylim=(0.0, 3.0), xlabel="time, s (shaded: from a change of the rate to its plan)"
    )
    cores.yaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (rates, p99s, shares, cores):
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle("Real Tritons that follow their load")
    figure.savefig(path)


def main() -> int:
    """Print each step; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, following_host(Path(folder)) as host:
        found = followed(host, STEPS, HELD_S)
    if given.plot is not None:
        plot(found, given.plot)
    late = any(step.took_s > aim for step, aim in zip(found.steps, AIMS_S, strict=True))
    return int(late)


if __name__ == "__main__":
    sys.exit(main())
