"""Training of a policy from a spec, with the learning curve on disk."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.device import noun
from controlplane.domain.errors import InputError, MissingTool
from controlplane.files.mistakes import nearest
from controlplane.files.policies import SUFFIX, write_curve, write_policy
from controlplane.files.specs import read_spec
from controlplane.papers.inss import strategy as inss
from controlplane.papers.inss.training.curve import Check
from controlplane.planning.protocol import PlanRequest
from controlplane.ports import Clock, Progress
from controlplane.runtime.jobs.plan import devices_for


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
    """The learning curve, and a summary in one line."""

    curve: tuple[Check, ...]
    summary: str


def train_policy(lesson: Lesson, *, profiles: Path, progress: Progress, clock: Clock) -> Learnt:
    """Train, write policy and learning curve, and remove the checkpoint.

    Raises InputError for mistakes in the spec, MissingTool without torch or gymnasium.
    """
    if lesson.output.suffix != SUFFIX:
        raise InputError(f"{lesson.output} must end in {SUFFIX}", field="--output")
    spec, document = read_spec(lesson.spec)
    try:
        from controlplane.papers.inss.training.environment import Reward
        from controlplane.papers.inss.training.training import TrainSettings, sizes_up_to, train
    except ImportError as error:
        raise MissingTool(f"training needs {error.name}: pip install 'trisect[rl]'") from None
    known = [kind.value for kind in Reward]
    if lesson.reward not in known:
        raise InputError(
            f"{lesson.reward!r} is not a reward{nearest(lesson.reward, known)}", field="--reward"
        )
    for i, gpu in enumerate(spec.gpus):
        if gpu.count is None:
            counted = noun([gpu.type])
            document.fail(f"needs a count: inss plans on a fixed number of {counted}s", ("gpus", i, "type"))
    cores = len(os.sched_getaffinity(0))
    devices, _ = devices_for(spec, document, inss.NAME, profiles=profiles, cores=cores)
    strategy = inss.strategy()
    base = inss.problem_of(PlanRequest(spec.workloads, devices, strategy.rule, clock))
    settings = TrainSettings(seed=lesson.seed, reward=Reward(lesson.reward))
    if lesson.rounds is not None:
        settings = settings.of_length(lesson.rounds)
    sizes = sizes_up_to(min(lesson.most_models or len(base.model), len(base.model)), len(base.type_of))
    checkpoint = lesson.output.with_suffix(".checkpoint")
    began = clock.monotonic()
    trained = train(base, sizes, settings, checkpoint=checkpoint, progress=progress, clock=clock)
    about = {
        "seed": lesson.seed,
        "reward": lesson.reward,
        "rounds": trained.curve[-1].round,
        "spec_sha256": document.sha256,
        "sizes": [list(size) for size in sizes],
    }
    write_policy(lesson.output, trained.weights, about)
    write_curve(lesson.output.with_suffix(".csv"), trained.curve)
    checkpoint.unlink(missing_ok=True)
    best = max(trained.curve, key=lambda check: check.value)
    return Learnt(
        trained.curve,
        f"{lesson.output}: {best.goodput_percent:.1f} % of the offered requests within their SLO, "
        f"{best.violations_percent:.2f} % late, on specs outside the training; best of "
        f"{len(trained.curve)} checks at round {best.round} ({trained.stopped_by}), "
        f"{clock.monotonic() - began:.0f} s",
    )
