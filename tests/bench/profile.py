"""The profiler on the sample models: `.venv/bin/python tests/bench/profile.py [--device cpu-1] [MODEL ...]`.

By default one model, on the first core.

Each model's eleven points, the time they take, and how well Eq 11 fitted on them foretells points at shares
and batches that are not among them. Timing needs a quiet host: points that got less of the processor than
their share are counted.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from rich.console import Console
from rich.table import Table

from controlplane.domain.device import CPU_GRID, Device, ShareKind
from controlplane.domain.profile import Profile
from controlplane.latency.protocol import Slots
from controlplane.papers.igniter import latency as igniter
from controlplane.profiler.session import Place, Profiler
from controlplane.profiler.subject import Wishes, read_subject
from controlplane.runtime.clock import SystemClock
from launchers.process.launcher import ProcessLauncher

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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu-0")
    parser.add_argument("models", nargs="*", default=["transformer_tiny"])
    asked = parser.parse_args()
    place = Place(DEVICE, asked.device)
    table = Table(title=f"Profiles on {place.name}", title_justify="left")
    for column in ("model", "seconds", "iGniter's", "ratio", "error on unseen %", "target %", "left out %"):
        table.add_column(column, justify="left" if column == "model" else "right")
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
            table.add_row(
                model,
                f"{seconds:.1f}",
                f"{IGNITER_S:.0f}",
                f"{seconds / IGNITER_S:.2f}",
                f"{error_percent(seen, unseen):.1f}",
                f"{TARGET_PERCENT:.0f}",
                f"{100 * igniter.curve_of(seen).holdout_error:.1f}",
            )
            print_points(seen, unseen)
    Console(width=110).print(table)


def print_points(*profiles: Profile) -> None:
    for profile in profiles:
        for p in profile.points:
            print(
                f"{profile.model} {p.percent:g} % b={p.batch}: {p.execution_ms:.2f} ms (n={p.n}, std "
                f"{p.std_ms or 0:.2f}), {p.capacity_rps or 0:.0f}/s, throttled {p.throttled}, host busy "
                f"{p.host_busy if p.host_busy is None else round(p.host_busy, 2)}"
            )


if __name__ == "__main__":
    main()
