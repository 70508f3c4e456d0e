"""`ctl train`: a policy for the InSS strategy, learnt around a spec."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import options


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("train")(train)


def train(
    spec: Path,
    output: Annotated[Path, typer.Option("--output", "-o", help="The policy; curve and checkpoint beside.")],
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    most_models: Annotated[
        int | None, typer.Option(help="Most models in a plan trained on [all of SPEC].", min=1)
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of 64 plans [400].", min=1)] = None,
    reward: Annotated[
        str, typer.Option(help="goodput, terminal (paid at the end) or paper (Eq 3).")
    ] = "goodput",
    seed: Annotated[int, typer.Option(help="Same seed and machine, same policy.", min=0)] = 1,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the learning curve here (.svg, .png or .pdf).", callback=options.drawable),
    ] = None,
) -> None:
    """Train on random plans around SPEC: its models and GPU types, other rates, SLOs and sizes.

    Interrupted, the same command goes on from its checkpoint. Needs the extra `rl`; `ctl plan --strategy inss
    --policy FILE` does not.
    """
    from controlplane.report.progress import Bar
    from controlplane.runtime.clock import SystemClock
    from controlplane.runtime.jobs.train import Lesson, train_policy

    with Bar() as bar:
        learnt = train_policy(
            Lesson(spec, output, most_models, rounds, reward, seed),
            profiles=profiles, progress=bar, clock=SystemClock(),
        )  # fmt: skip
    print(learnt.told)
    if plot is not None:
        from controlplane.report.learning_plot import plot_learning

        plot_learning(learnt.curve, plot)
