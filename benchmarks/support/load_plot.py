"""Lines over time, an axis under another: the picture of `benchmarks.plans.changing_load`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np


def plot(
    path: Path,
    title: str,
    window_s: int,
    axes: Mapping[str, Mapping[str, Sequence[float]]],
    limits: Mapping[str, float],
) -> None:
    """Draw lines with a value for each second or each window; axes with a limit are logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 12), layout="constrained")
    seconds = max(len(values) for lines in axes.values() for values in lines.values())
    for axis, (label, lines) in zip(figure.subplots(len(axes), 1, sharex=True), axes.items(), strict=True):
        for name, values in lines.items():
            times_s = np.arange(len(values)) * (1 if len(values) == seconds else window_s)
            axis.step(times_s, values, where="post", lw=1.0, label=name)
        axis.set(ylabel=label, xlabel="time, s (P99 and late: the worst workload)")
        axis.label_outer()
        if label in limits:
            axis.set(yscale="log")
            axis.axhline(limits[label], color="black", lw=0.8, ls=":")
        axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle(title)
    figure.savefig(path)
