"""What the upper 95 % quantile covers, by the kind of the point.

    python -m benchmarks.times.quantiles [--sessions DIR DIR [DIR ...]]

The V100's batch sizes, pairs and models left out whole, and each of the RTX 2060's co-location points. With
--sessions: directories of `ctl profile --profiles DIR`, oldest first; fitted on the last but one (which knows
its repeats from those before) and tested on the last.
Aim: 93 % or more of each; where a kind is new to the fit, more than 98 % are no fault. Exits 1 where missed.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

from benchmarks.harness import Figures, show, table
from controlplane.domain.profile import ColocationPoint, Neighbour, Profile
from controlplane.files import catalogue
from controlplane.files.measurements.profiles import read_profiles
from controlplane.latency import default as ours
from controlplane.latency.protocol import LatencyModel, Slots
from controlplane.profiler.findings import with_repeats
from controlplane.runtime.devices import known_device

Profiles = Mapping[str, Profile]
Chosen = Callable[[str, ColocationPoint], bool]
"""Whether a model's co-location point belongs to a group."""
LOWEST_AIM = 93.0


class Errors:
    """Predictions beside measurements, gathered from several fits."""

    def __init__(self) -> None:
        self._measured: list[float] = []
        self._predicted: list[float] = []
        self._upper: list[float] = []

    def ask(self, model: LatencyModel, tenants: Iterable[Neighbour], measured_ms: float) -> None:
        """The first tenant's time beside the others."""
        listed = list(tenants)
        answer = model.estimate(
            Slots.of(
                [[model.models.index(t.model) for t in listed]],
                [[t.batch for t in listed]],
                [[t.percent for t in listed]],
            )
        )
        self._measured.append(measured_ms)
        self._predicted.append(float(answer.execution_ms[0, 0]))
        self._upper.append(float(answer.execution_upper_ms[0, 0]))

    def row(self) -> tuple[list[str], float]:
        """The table's cells, and the coverage in percent."""
        measured, predicted, upper = map(np.array, (self._measured, self._predicted, self._upper))
        error = 100.0 * (predicted / measured - 1.0)
        covered = 100.0 * float(np.mean(measured <= upper))
        margin = 100.0 * float(np.mean(upper / predicted - 1.0))
        figures = (float(np.mean(np.abs(error))), float(np.mean(error)), margin, covered)
        cells = [f"{measured.size}", *(f"{f:.2f}" for f in figures), f"{covered / 95.0:.2f}"]
        return cells, covered


def left_out(device: str, groups: Iterable[Chosen]) -> Errors:
    """Each group in turn is left out of a device's co-location points and predicted."""
    kind, profiles = catalogue.device(device), catalogue.profiles(device)
    assert kind is not None
    errors = Errors()
    for chosen in groups:
        kept = {
            m: replace(p, colocation=tuple(c for c in p.colocation if not chosen(m, c)))
            for m, p in profiles.items()
        }
        model = ours.fit(kept, kind)
        for name, profile in profiles.items():
            for c in (point for point in profile.colocation if chosen(name, point)):
                tenants = (Neighbour(name, c.percent, c.batch), *c.neighbours)
                errors.ask(model, tenants, c.execution_ms)
    return errors


def of_size(size: int) -> Chosen:
    return lambda m, c: size in (c.batch, *(n.batch for n in c.neighbours))


def of_pair(pair: tuple[str, ...]) -> Chosen:
    return lambda m, c: {m, *(n.model for n in c.neighbours)} == set(pair)


def of_model(model: str) -> Chosen:
    return lambda m, c: model in (m, *(n.model for n in c.neighbours))


def _is(chosen: tuple[str, ColocationPoint], model: str, point: ColocationPoint) -> bool:
    return (model, point) == chosen


def single_points(device: str) -> list[Chosen]:
    return [
        partial(_is, (model, point))
        for model, profile in catalogue.profiles(device).items()
        for point in profile.colocation
    ]


def in_sessions(directories: list[Path]) -> Errors:
    """Fitted on the last directory but one, with its repeats against those before; asked of the last."""
    kind = known_device("cpu")
    sessions = [read_profiles(d, kind.name) for d in directories]
    fitted: Profiles = sessions[0]
    for later in sessions[1:-1]:
        fitted = {m: with_repeats(p, fitted.get(m)) for m, p in later.items()}
    model = ours.fit(fitted, kind)
    errors = Errors()
    for name, profile in sessions[-1].items():
        for p in profile.points:
            errors.ask(model, [Neighbour(name, p.percent, p.batch)], p.execution_ms)
        for c in profile.colocation:
            errors.ask(model, (Neighbour(name, c.percent, c.batch), *c.neighbours), c.execution_ms)
    return errors


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", nargs="+", type=Path, default=[])
    asked = parser.parse_args()
    models = list(catalogue.profiles("v100"))
    cases: dict[str, Callable[[], Errors]] = {
        "V100, batch sizes": lambda: left_out("v100", map(of_size, (2, 4, 8, 16, 32))),
        "V100, pairs of models": lambda: left_out("v100", map(of_pair, itertools.combinations(models, 2))),
        "V100, models": lambda: left_out("v100", map(of_model, models)),
        "RTX 2060, each point": lambda: left_out("rtx2060", single_points("rtx2060")),
    }
    if len(asked.sessions) > 1:
        cases[f"cpu, session {len(asked.sessions)}"] = lambda: in_sessions(asked.sessions)
    columns = ("left out", ">n", ">mean error %", ">bias %", ">margin %", ">covered %", ">ratio to 95")
    made = table("The upper 95 % quantile on what the fit has not seen", *columns)
    figures = Figures()
    for name, case in cases.items():
        cells, covered = case().row()
        made.add_row(name, *cells)
        figures.add(f"{name}: covered", covered, "%", at_least=LOWEST_AIM)
    show(made)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
