"""The plot of a plan: GPUs as bars, partitions as segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controlplane.domain.device import noun
from controlplane.domain.errors import MissingTool
from controlplane.domain.plan import Partition, Plan, Prediction, Rule
from controlplane.report.plots.figure import save
from controlplane.report.tables.plan_table import counted, names

_BAR_INCHES = 0.42
_NARROW_PERCENT = 14.0


def plot_plan(plan: Plan, path: Path) -> None:
    """Write the figure to `path`; its suffix (.svg, .png, .pdf) names the format.

    A segment's width is the partition's share. Its label has the model, the batch, and the P99 in percent of
    the SLO (under the half-SLO rule: the execution time in percent of half the SLO). Raises MissingTool where
    matplotlib is not installed.
    """
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingTool("plots need matplotlib: pip install 'trisect[plot]'") from None
    models = sorted({m.model for _, partition in plan.partitions() for m in partition.models})
    palette = colormaps["Set2"]
    colours = {model: palette(i % palette.N) for i, model in enumerate(models)}
    figure = Figure(figsize=(11, 1.6 + _BAR_INCHES * len(plan.gpus)), layout="constrained")
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
    save(figure, path)


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
