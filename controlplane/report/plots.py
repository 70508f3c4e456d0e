"""Plots of plans, simulations and training; they need the extra `plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from controlplane.domain.device import noun
from controlplane.domain.errors import EngineError, MissingTool
from controlplane.domain.plan import Partition, Plan, Prediction, Rule
from controlplane.latency.protocol import FloatArray
from controlplane.report.words import counted, names
from controlplane.simulate.result import SimulationResult, WorkloadOutcome, edges_ms

_BAR_INCHES = 0.42
_NARROW_PERCENT = 14.0
POINTS = 100
"""The number of points over time."""


def plot_plan(plan: Plan, path: Path) -> None:
    """Write the figure to `path`; its suffix (.svg, .png, .pdf) names the format.

    A segment's width is the partition's share. Its label has the model, the batch, and the P99 in percent of
    the SLO (under the half-SLO rule: the execution time in percent of half the SLO). Raises MissingTool where
    matplotlib is not installed.
    """
    figure = _figure(11, 1.6 + _BAR_INCHES * len(plan.gpus))
    from matplotlib import colormaps

    models = sorted({m.model for _, partition in plan.partitions() for m in partition.models})
    palette = colormaps["Set2"]
    colours = {model: palette(i % palette.N) for i, model in enumerate(models)}
    axes = figure.subplots()
    for row, gpu in enumerate(plan.gpus):
        left = 0.0
        for partition in gpu.partitions:
            # Models that take turns lie above each other.
            height = 0.8 / len(partition.models)
            for n, served in enumerate(partition.models):
                middle = row - 0.4 + height * (n + 0.5)
                colour = colours[served.model]
                axes.barh(
                    middle, partition.percent, left=left, color=colour, edgecolor="white", height=height
                )
            _label(axes, partition, plan.rule, left + partition.percent / 2, row)
            left += partition.percent
    axes.set_yticks(range(len(plan.gpus)), [gpu.id for gpu in plan.gpus])
    axes.set_ylim(max(len(plan.gpus), 1) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    promise = "P99 in % of the SLO" if plan.rule is Rule.P99 else "execution in % of half the SLO"
    axes.set_xlabel(f"share, percent; in a segment: workload, batch, {promise}")
    devices = counted(len(plan.gpus), noun(gpu.type for gpu in plan.gpus))
    figure.suptitle(f"{plan.strategy}, rule {plan.rule}: {devices}")
    for model, colour in colours.items():
        axes.bar(0, 0, color=colour, label=model)
    if colours:  # an empty plan has no segment
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    _save(figure, path)


def _label(axes: Any, partition: Partition, rule: Rule, middle: float, row: int) -> None:
    label = (
        f"{names([w.name for w in partition.workloads])}\nb{'+'.join(str(m.batch) for m in partition.models)}"
    )
    used = [u for w in partition.workloads if (u := _of_slo(w.predicted, w.slo_ms, rule)) is not None]
    if used:
        label += f" · {100 * max(used):.0f} %"
    small = partition.percent < _NARROW_PERCENT
    axes.text(middle, row, label, ha="center", va="center", fontsize=6 if small else 8)


def _of_slo(predicted: Prediction, slo_ms: float, rule: Rule) -> float | None:
    if rule is Rule.HALF_SLO:
        return None if predicted.execution_ms is None else predicted.execution_ms / (slo_ms / 2)
    return None if predicted.p99_ms is None else predicted.p99_ms / slo_ms


def _figure(width: float, height: float) -> Any:
    """Return an empty figure, in inches. Raises MissingTool where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingTool("plots need matplotlib: pip install 'trisect[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    """Write a matplotlib figure in the format of the path's suffix. Raises EngineError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise EngineError(f"{path}: cannot be written: {error.strerror}") from error


def plot_simulation(result: SimulationResult, path: Path) -> None:
    """Write the figure to `path`; its suffix (.svg, .png, .pdf) names the format.

    Latencies are divided by the workload's SLO, so that all share one scale. Raises MissingTool where
    matplotlib is not installed.
    """
    figure = _figure(11, 4.5)
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
    _save(figure, path)


def _exceeded(workload: WorkloadOutcome) -> tuple[FloatArray, FloatArray]:
    """Return the observed latencies, and for each the part of the answers that took longer."""
    edges = edges_ms()[1:]
    total = max(int(workload.counts.sum()), 1)
    later = 1.0 - np.cumsum(workload.counts) / total
    seen = np.flatnonzero(workload.counts)
    return edges[seen], later[seen]


def plot_learning(curve: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw the rows of a curve to `path`; its suffix (.svg, .png, .pdf) names the format.

    Raises MissingTool where matplotlib is not installed, EngineError where the disk refuses.
    """
    figure = _figure(10, 4)
    served, sure = figure.subplots(1, 2)
    plans = [c["episodes"] for c in curve]
    served.plot(plans, [c["goodput_percent"] for c in curve], label="within their SLO")
    served.plot(plans, [c["violations_percent"] for c in curve], label="late")
    served.set(xlabel="plans trained on", ylabel="part of the offered requests, %", ylim=(0, 102))
    served.legend()
    sure.plot(plans, [c["entropy"] for c in curve])
    sure.set(xlabel="plans trained on", ylabel="entropy, nats", ylim=(0, None))
    _save(figure, path)
