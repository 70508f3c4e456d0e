"""`ctl train`: a policy for the InSS strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import options
from controlplane.cli.output import answer, progress_bar


def train(
    spec: options.Spec,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The policy's file; the learning curve and a checkpoint are written beside it.",
        ),
    ],
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    most_models: Annotated[
        int | None, typer.Option(help="The largest number of models in a training plan [all of SPEC].", min=1)
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="The number of rounds, each of 64 plans [400].", min=1)
    ] = None,
    reward: Annotated[
        str,
        typer.Option(help="The reward: goodput, terminal (at the end of a plan only) or paper (Eq 3)."),
    ] = "goodput",
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.", min=0)] = 1,
    json: options.Json = False,
) -> None:
    """Train a policy for `ctl plan --strategy inss` on random specs like SPEC.

    They have SPEC's models and GPU types, and other rates, SLOs and sizes. After an interruption, the same
    command continues from its checkpoint. Training needs the extra `rl`, planning does not.
    """
    from controlplane.runtime import SystemClock
    from controlplane.runtime.jobs.train import Lesson, train_policy

    with progress_bar() as bar:
        learnt = train_policy(
            Lesson(spec, output, most_models, rounds, reward, seed),
            profiles=profiles,
            progress=bar,
            clock=SystemClock(),
        )
    document = {"policy": str(output), "summary": learnt.summary, "curve": learnt.curve}
    answer(document, learnt.summary, json=json)
