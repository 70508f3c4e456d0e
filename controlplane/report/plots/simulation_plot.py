"""What a simulation saw, drawn: P99 over time, and the distribution of latencies against the SLO."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from controlplane.domain.errors import MissingTool
from controlplane.latency.protocol import FloatArray
from controlplane.report.plots.figure import save
from controlplane.simulate import quantiles
from controlplane.simulate.result import SimulationResult, WorkloadOutcome

POINTS = 100
"""The number of points over time."""


def plot_simulation(result: SimulationResult, path: Path) -> None:
    """Write the figure to `path`; its suffix (.svg, .png, .pdf) names the format.

    Latencies are divided by the workload's SLO, so that all share one scale. Raises MissingTool where
    matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingTool("plots need matplotlib: pip install 'trisect[plot]'") from None
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    over_time, distribution = figure.subplots(1, 2)
    for workload in result.workloads:
        style = "-" if workload.holds else "--"
        line = workload.timeline
        over_time.plot(line.time_s, line.p99_ms / workload.slo_ms, style, lw=1, label=workload.name)
        late, share = _exceeded(workload)
        distribution.plot(late / workload.slo_ms, share, style, lw=1, label=workload.name)
    over_time.axhline(1.0, color="black", lw=0.8)
    over_time.set(xlabel="time, s", ylabel="P99 / SLO", yscale="log")
    distribution.axvline(1.0, color="black", lw=0.8)
    distribution.axhline(0.01, color="black", lw=0.8, ls=":")
    distribution.set(
        xlabel="latency / SLO", ylabel="share of answers later than that", xscale="log", yscale="log"
    )
    distribution.set_ylim(1e-4, 1.0)
    if len(result.workloads) <= 20:
        distribution.legend(fontsize="small", ncols=2)
    broken = f"{result.breaks} of {len(result.workloads)} break their SLO (dashed)"
    figure.suptitle(f"{broken}; {result.seconds:g} s simulated, seed {result.seed}")
    save(figure, path)


def _exceeded(workload: WorkloadOutcome) -> tuple[FloatArray, FloatArray]:
    """Return the observed latencies, and for each the part of the answers that took longer."""
    edges = quantiles.edges_ms()[1:]
    total = max(int(workload.counts.sum()), 1)
    later = 1.0 - np.cumsum(workload.counts) / total
    seen = np.flatnonzero(workload.counts)
    return edges[seen], later[seen]
