"""The profiler on the sample models: `python -m benchmarks.times.profile [--device cpu-1] [MODEL ...]`.

By default one model, on the first core.

Each model's eleven points, the time they take, and how well Eq 11 fitted on them foretells points at shares
and batches that are not among them. Timing needs a quiet host: points that got less of the processor than
their share are counted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from benchmarks.harness import Figures, show, table
from controlplane.domain.device import CPU_GRID, Device, ShareKind
from controlplane.domain.profile import Profile
from controlplane.latency.protocol import Slots
from controlplane.papers.igniter import latency as igniter
from controlplane.profiler.session import Place, Profiler
from controlplane.profiler.subject import Wishes, read_subject
from controlplane.runtime import SystemClock
from launchers.process import ProcessLauncher

REPOSITORY = Path(__file__).parents[2] / "model_repository"
DEVICE = Device("cpu", ShareKind.CPU_QUOTA, CPU_GRID)
UNSEEN = Wishes(percents=(40, 80), batches=(2, 6, 16), budget_s=20)
IGNITER_S = 240.0
"""What the paper reports for one model."""
TARGET_PERCENT = 8.0


class Quiet:
    """No progress: the table is the result."""

    def advance(self, what: str, done: int, total: int, seconds_left: float | None) -> None:
        """Nothing."""


def error_percent(seen: Profile, unseen: Profile) -> float:
    """Mean relative error of Eq 11 fitted on one profile's points at the other's."""
    curve = igniter.curve_of(seen)
    fitted = Profile(**{**_fields(seen), "fits": {igniter.NAME: curve.coefficients}})
    model = igniter.fit({seen.model: fitted}, DEVICE)
    slots = Slots.alone(0, [p.batch for p in unseen.points], [p.percent for p in unseen.points])
    told = model.estimate(slots).execution_ms[:, 0]
    measured = np.array([p.execution_ms for p in unseen.points])
    return float(100 * np.mean(np.abs(told / measured - 1)))


def _fields(profile: Profile) -> dict[str, object]:
    return {name: getattr(profile, name) for name in profile.__slots__}


def main() -> int:
    figures = Figures()
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu-0")
    parser.add_argument("models", nargs="*", default=["transformer_tiny"])
    asked = parser.parse_args()
    place = Place(DEVICE, asked.device)
    made = table(f"Profiles on {place.name}", "model", ">seconds", ">error on unseen %", ">left out %")
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        profiler = Profiler(
            ProcessLauncher(root / "state"), SystemClock(), Quiet(), root / "profiles", root / "scratch"
        )
        for model in asked.models:
            began = time.monotonic()
            seen = profiler.measure(read_subject(REPOSITORY, model, DEVICE), place, resume=False).profile
            seconds = time.monotonic() - began
            others = read_subject(REPOSITORY, model, DEVICE, UNSEEN)
            unseen = profiler.measure(others, place, resume=False).profile
            error = error_percent(seen, unseen)
            held_out = 100 * igniter.curve_of(seen).holdout_error
            made.add_row(model, f"{seconds:.1f}", f"{error:.1f}", f"{held_out:.1f}")
            figures.add(f"{model}: measured in", seconds, "s", at_most=IGNITER_S, reference=IGNITER_S)
            figures.add(f"{model}: error on unseen points", error, "%", at_most=TARGET_PERCENT)
            print_points(seen, unseen)
    show(made)
    return figures.end()


def print_points(*profiles: Profile) -> None:
    for profile in profiles:
        for p in profile.points:
            print(
                f"{profile.model} {p.percent:g} % b={p.batch}: {p.execution_ms:.2f} ms (n={p.n}, std "
                f"{p.std_ms or 0:.2f}), {p.capacity_rps or 0:.0f}/s, throttled {p.throttled}, host busy "
                f"{p.host_busy if p.host_busy is None else round(p.host_busy, 2)}"
            )


if __name__ == "__main__":
    sys.exit(main())
