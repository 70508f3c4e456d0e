"""The plot of a learning curve: what the policy serves, and its entropy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from controlplane.domain.errors import MissingTool
from controlplane.report.plots.figures import save


def plot_learning(curve: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw the rows of a curve to `path`; its suffix (.svg, .png, .pdf) names the format.

    Raises MissingTool where matplotlib is not installed, EngineError where the disk refuses.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingTool("plots need matplotlib: pip install 'trisect[plot]'") from None
    figure = Figure(figsize=(10, 4), layout="constrained")
    served, sure = figure.subplots(1, 2)
    plans = [c["episodes"] for c in curve]
    served.plot(plans, [c["goodput_percent"] for c in curve], label="within their SLO")
    served.plot(plans, [c["violations_percent"] for c in curve], label="late")
    served.set(xlabel="plans trained on", ylabel="part of the offered requests, %", ylim=(0, 102))
    served.legend()
    sure.plot(plans, [c["entropy"] for c in curve])
    sure.set(xlabel="plans trained on", ylabel="entropy, nats", ylim=(0, None))
    save(figure, path)
