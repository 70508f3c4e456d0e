"""The InSS paper's tables 2 and 3, each observation left out: `python -m benchmarks.times.latency_inss`.

The paper fitted its model on profiles that were not published. Here each observation is predicted from the
catalogue without it and without whatever the catalogue derived from it.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import resources

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from benchmarks.harness import Figures, show, table
from controlplane.domain.device import Device
from controlplane.domain.profile import Measurement, Profile
from controlplane.files import catalogue
from controlplane.latency import default as ours
from controlplane.latency.protocol import LatencyModel, Slots
from controlplane.papers.inss import latency as inss

DEVICE = "rtx2060s"
AIM_PERCENT = 10.0
"""The paper's model was fitted on the profiles that it predicts; here each observation is left out."""
Fit = Callable[[Mapping[str, Profile], Device], LatencyModel]
Tenant = tuple[str, float, int]


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of a table: (who, beside whom, observed, predicted by the paper), four observations."""

    title: str
    tenants: tuple[tuple[Tenant, ...], ...]
    observed_ms: tuple[float, ...]
    paper_ms: tuple[float, ...]


def over_batches(title: str, model: str, beside: tuple[Tenant, ...], *columns: tuple[float, ...]) -> Setting:
    return Setting(title, tuple(((model, 30.0, b), *beside) for b in (1, 4, 8, 16)), *columns)


def over_shares(title: str, model: str, *columns: tuple[float, ...]) -> Setting:
    return Setting(title, tuple(((model, p, 4),) for p in (6.0, 24.0, 42.0, 60.0)), *columns)


A4, R4 = ("alexnet", 30.0, 4), ("resnet50", 30.0, 4)
SETTINGS = (
    over_batches(
        "R alone 30 %", "resnet50", (), (8.69, 23.285, 43.422, 71.456), (8.905, 23.888, 43.405, 71.396)
    ),
    over_batches("A 30 %, R", "alexnet", (R4,), (2.848, 5.674, 8.898, 10.191), (2.894, 5.75, 8.975, 10.487)),
    over_batches(
        "V 30 %, A, R",
        "vgg16",
        (A4, R4),
        (18.196, 62.009, 120.382, 176.308),
        (18.207, 59.984, 117.064, 170.879),
    ),
    over_shares("M alone", "mnasnet", (13.686, 4.241, 3.468, 3.409), (13.185, 4.101, 3.461, 3.395)),
    over_shares("R1, M *", "resnet18", (43.016, 11.446, 7.422, 5.483), (41.909, 11.586, 7.136, 5.433)),
    over_shares("V1, R1, M *", "vgg19", (358.27, 91.69, 53.947, 39.411), (355.554, 90.465, 53.071, 38.279)),
    Setting(
        "E 18 %, M1",
        tuple((("efficientnet", 18.0, 4), ("mobilenet_v3", p, 4)) for p in (6.0, 24.0, 42.0, 60.0)),
        (15.515, 16.17, 16.958, 17.516),
        (16.108, 16.416, 16.725, 17.114),
    ),
)


def borrowed() -> set[tuple[str, float, int]]:
    """Points of the catalogue that take another model's shape, scaled by the very observations."""
    text = resources.files(catalogue).joinpath(DEVICE, "solo.csv").read_text()
    return {
        (row["model"], float(row["pct"]), int(row["batch"]))
        for row in csv.DictReader(text.splitlines())
        if row["assumed"].startswith("scaled shape")
    }


def without(setting: Setting, k: int) -> dict[str, Profile]:
    """The catalogue's profiles less observation k of this setting and all that came of it."""
    profiles = dict(catalogue.profiles(DEVICE))
    (model, percent, batch), *beside = setting.tenants[k]
    profile = profiles[model]
    gone = {(model, percent, batch)}
    if setting.title.endswith("*"):
        gone |= borrowed()
    points = [p for p in profile.points if (model, p.percent, p.batch) not in gone]
    if model == "efficientnet":
        # Its latency alone is the line through the other three, at no share of the neighbour.
        others = [i for i in range(4) if i != k]
        shares = [setting.tenants[i][1][1] for i in others]
        alone = float(np.polyfit(shares, [setting.observed_ms[i] for i in others], 1)[1])
        points.append(Measurement(percent=percent, batch=batch, execution_ms=alone))
    asked = tuple((name, p, b) for name, p, b in beside)
    colocation = tuple(
        c
        for c in profile.colocation
        if (c.percent, c.batch, tuple((n.model, n.percent, n.batch) for n in c.neighbours))
        != (percent, batch, asked)
    )
    profiles[model] = replace(profile, points=tuple(points), colocation=colocation, fits={})
    return profiles


def errors(fit: Fit, setting: Setting) -> list[float]:
    device = catalogue.device(DEVICE)
    assert device is not None
    found = []
    for k, tenants in enumerate(setting.tenants):
        model = fit(without(setting, k), device)
        slots = Slots.of(
            [[model.models.index(name) for name, _, _ in tenants]],
            [[batch for _, _, batch in tenants]],
            [[percent for _, percent, _ in tenants]],
        )
        predicted = float(model.estimate(slots).execution_ms[0, 0])
        found.append(100.0 * abs(predicted / setting.observed_ms[k] - 1.0))
    return found


def main() -> int:
    figures = Figures()
    made = table(
        "InSS tables 2 and 3: mean error % of four observations, each left out",
        "setting",
        ">ours, left out",
        ">largest",
        ">inss here, left out",
        ">paper, fitted on its profiles",
        ">ratio",
    )
    totals: list[tuple[float, float, float]] = []
    for setting in SETTINGS:
        mine, theirs = errors(ours.fit, setting), errors(inss.fit, setting)
        pairs = zip(setting.paper_ms, setting.observed_ms, strict=True)
        paper = [100.0 * abs(p / o - 1.0) for p, o in pairs]
        row = float(np.mean(mine)), float(np.mean(theirs)), float(np.mean(paper))
        totals.append(row)
        made.add_row(
            setting.title,
            f"{row[0]:.1f}",
            f"{max(mine):.1f}",
            f"{row[1]:.1f}",
            f"{row[2]:.1f}",
            f"{row[0] / row[2]:.1f}",
        )
    mine_all, theirs_all, paper_all = np.mean(totals, axis=0)
    made.add_row(
        "all", f"{mine_all:.1f}", "", f"{theirs_all:.1f}", f"{paper_all:.1f}", f"{mine_all / paper_all:.1f}"
    )
    made.caption = "* beside neighbours; taken as alone, its own latency alone was not published"
    show(made)
    figures.add("mean error of ours, left out", mine_all, "%", at_most=AIM_PERCENT, reference=paper_all)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
