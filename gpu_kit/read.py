"""Compare a report's neighbours with what latency models predict.

    python -m gpu_kit.read gpu-report.json

Each time beside a neighbour is predicted by models that were fitted without points of its batch sizes, so
that none was fitted on what it predicts. Eq 1-11 has power, clock and transfers as far as the report has
them, alpha_cache and Delta_sch from the other pairs, and stand-ins for Nsight's counters, which a kit has not
(`papers.igniter.profiling`). Needs numba and scipy, so a clone or the full folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from controlplane.domain.device import MPS_GRID, Device, DeviceLimits, ShareKind
from controlplane.domain.errors import InputError
from controlplane.domain.profile import (
    ColocationPoint,
    Counters,
    Environment,
    Measurement,
    Neighbour,
    Profile,
)
from controlplane.latency.evaluate import batch_sizes_left_out, predicted
from controlplane.latency.registry import FITS, recorder
from controlplane.papers.igniter.latency import FEWEST_POINTS
from gpu_kit.report import Report, read

MODEL = "spin"
LATENCY_MODELS = {"Eq 1-11": "igniter-refit", "ours": "ours"}
"""Names in the table, and in the registry."""
MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Row:
    """One setting: measured and predicted times, `predicted_ms` by the names in the table.

    `alone_ms` is the profile's time there without a neighbour, None where it was not measured.
    """

    own: str
    beside: str
    alone_ms: float | None
    measured_ms: float
    predicted_ms: dict[str, float]

    def error(self, name: str) -> float:
        """Return the relative error of one prediction."""
        return self.predicted_ms[name] / self.measured_ms - 1.0


def rows(report: Report) -> list[Row]:
    """Return the settings of the report's neighbours. Raises InputError where it has too few points."""
    device, profile = _profile(report)
    alone = {(p.percent, p.batch): p.execution_ms for p in profile.points}
    found: dict[tuple[float, int, float, int], dict[str, list[float]]] = {}
    for seen, unseen in batch_sizes_left_out({MODEL: profile}):
        fits = [FITS[fit].load() for fit in LATENCY_MODELS.values()]
        predictions = [predicted(fit, device, seen, unseen).predicted_ms for fit in fits]
        for i, (own, other) in enumerate(unseen):
            here = found.setdefault((own.percent, own.batch, other.percent, other.batch), defaultdict(list))
            here[MEASURED].append(own.latency_ms)
            for name, times in zip(LATENCY_MODELS, predictions, strict=True):
                here[name].append(float(times[i]))
    return [
        Row(
            f"{percent:g} % batch {batch}",
            f"{beside:g} % batch {its_batch}",
            alone.get((percent, batch)),
            fmean(times[MEASURED]),
            {name: fmean(times[name]) for name in LATENCY_MODELS},
        )
        for (percent, batch, beside, its_batch), times in found.items()
    ]


def _profile(report: Report) -> tuple[Device, Profile]:
    """Return the GPU and the profile, with the coefficients of Eq 1-11 that `ctl profile` would record."""
    points = [Measurement(**p) for p in report.figures("profile").get("points", ())]
    beside = [
        ColocationPoint(**{**p, "neighbours": tuple(Neighbour(**n) for n in p["neighbours"])})
        for p in report.figures("neighbours").get("points", ())
    ]
    for step, count, least in (("profile", len(points), FEWEST_POINTS), ("neighbours", len(beside), 1)):
        if count < least:
            way_out = f"run the kit without --short, or ./run --only {step}"
            raise InputError(f"it has {count} points and needs {least}: {way_out}", field=step)
    device = Device("gpu", ShareKind.MPS_PERCENT, MPS_GRID)
    if (limits := report.figures("host").get("driver_limits")) is not None:
        device = recorder().described(device, DeviceLimits(**limits))
    environment = Environment(**report.figures("profile").get("environment", {}))
    profile = Profile(MODEL, device.name, device.share_kind, environment, tuple(points))
    profile = recorder().with_fits(profile, Counters(), device, counted=False)
    # Without points beside others: of their coefficients it fits the clock's alone.
    device, _ = recorder().with_interference(device, {MODEL: profile})
    return device, replace(profile, colocation=tuple(beside))


def table(report: Report) -> Iterator[str]:
    """Yield the lines: every setting, then the mean and the largest error of each latency model."""
    found = rows(report)
    yield f"rehearsal: {report.rehearsal} stood in for a GPU" if report.rehearsal else "on a GPU"
    names = "".join(f"{name:>10} {'error':>7}" for name in LATENCY_MODELS)
    yield f"{'own':<15}{'beside':<15}{'alone ms':>9}{'beside ms':>10}{names}"
    for row in found:
        alone = "-" if row.alone_ms is None else f"{row.alone_ms:.2f}"
        told = "".join(f"{ms:>10.2f} {row.error(name):>+7.1%}" for name, ms in row.predicted_ms.items())
        yield f"{row.own:<15}{row.beside:<15}{alone:>9}{row.measured_ms:>10.2f}{told}"
    for name in LATENCY_MODELS:
        errors = [abs(row.error(name)) for row in found]
        yield f"{name}: mean error {fmean(errors):.1%}, largest {max(errors):.1%}"


def main(given: Sequence[str] | None = None) -> int:
    """Print the comparison; 1 where the report does not hold what it needs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path, help="the kit's gpu-report.json")
    path = parser.parse_args(given).report
    try:
        print("\n".join(table(read(path))))
    except (OSError, json.JSONDecodeError, TypeError, KeyError) as error:
        print(f"{path}: not a report of the kit: {error}", file=sys.stderr)
        return 1
    except InputError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
