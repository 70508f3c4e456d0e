"""Training of a policy from a spec, with the learning curve on disk."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from controlplane.domain.device import noun
from controlplane.domain.errors import InputError, MissingTool
from controlplane.files.mistakes import nearest
from controlplane.files.plans import read_spec
from controlplane.files.writing import write_bytes, write_text
from controlplane.planning.protocol import PlanRequest
from controlplane.planning.registry import strategy
from controlplane.ports import Clock, Progress
from controlplane.runtime.jobs.plan import NO_POLICY, devices_for

SUFFIX = ".npz"


@dataclass(frozen=True, slots=True)
class Lesson:
    """The options of a training; None is the default."""

    spec: Path
    output: Path
    most_models: int | None
    rounds: int | None
    reward: str
    seed: int


@dataclass(frozen=True, slots=True)
class Learnt:
    """The learning curve, one row a check, and a summary in one line."""

    curve: tuple[Mapping[str, float], ...]
    summary: str


def train_policy(lesson: Lesson, *, profiles: Path, progress: Progress, clock: Clock) -> Learnt:
    """Train, write policy and learning curve, and remove the checkpoint.

    Raises InputError for mistakes in the spec, MissingTool without torch.
    """
    if lesson.output.suffix != SUFFIX:
        raise InputError(f"{lesson.output} must end in {SUFFIX}", field="--output")
    spec, document = read_spec(lesson.spec)
    try:
        from controlplane.papers.inss.training.training import REWARDS, TrainSettings, train_on
    except ImportError as error:
        raise MissingTool(f"training needs {error.name}: pip install 'trisect[rl]'") from None
    if lesson.reward not in REWARDS:
        raise InputError(
            f"{lesson.reward!r} is not a reward{nearest(lesson.reward, REWARDS)}", field="--reward"
        )
    for i, gpu in enumerate(spec.gpus):
        if gpu.count is None:
            counted = noun([gpu.type])
            document.fail(f"needs a count: inss plans on a fixed number of {counted}s", ("gpus", i, "type"))
    cores = len(os.sched_getaffinity(0))
    inss = strategy("inss", policy=NO_POLICY)
    devices, _ = devices_for(spec, document, inss.latency_model, profiles=profiles, cores=cores)
    settings = TrainSettings(seed=lesson.seed, reward=REWARDS[lesson.reward])
    if lesson.rounds is not None:
        settings = settings.of_length(lesson.rounds)
    checkpoint = lesson.output.with_suffix(".checkpoint")
    began = clock.monotonic()
    trained, sizes = train_on(
        PlanRequest(spec.workloads, devices, inss.rule, clock),
        settings,
        lesson.most_models,
        checkpoint=checkpoint,
        progress=progress,
        clock=clock,
    )
    about = {
        "seed": lesson.seed,
        "reward": lesson.reward,
        "rounds": trained.curve[-1].round,
        "spec_sha256": document.sha256,
        "sizes": [list(size) for size in sizes],
    }
    curve = tuple(asdict(check) for check in trained.curve)
    write_bytes(lesson.output, trained.file(about))
    text = io.StringIO()
    table = csv.DictWriter(text, list(curve[0]), lineterminator="\n")
    table.writeheader()
    table.writerows({name: f"{value:.6g}" for name, value in check.items()} for check in curve)
    write_text(lesson.output.with_suffix(".csv"), text.getvalue())
    checkpoint.unlink(missing_ok=True)
    best = max(trained.curve, key=lambda check: check.value)
    return Learnt(
        curve,
        f"{lesson.output}: {best.goodput_percent:.1f} % of the offered requests within their SLO, "
        f"{best.violations_percent:.2f} % late, on specs outside the training; best of "
        f"{len(trained.curve)} checks at round {best.round} ({trained.stopped_by}), "
        f"{clock.monotonic() - began:.0f} s",
    )
