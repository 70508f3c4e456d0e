"""`ctl compare`: strategies side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from controlplane.cli import options
from controlplane.cli.output import answer, progress_bar, say
from controlplane.domain.errors import InputError
from controlplane.files.documents import plain
from controlplane.files.mistakes import nearest
from controlplane.files.writing import write_text
from controlplane.planning.registry import STRATEGIES
from controlplane.report.tables.comparison_table import comparison_table
from controlplane.runtime.jobs.compare import DEFAULT, TRUTHS, Question, chosen, scaled
from controlplane.runtime.jobs.compare import compare as compared


def compare(
    spec: options.Spec,
    strategies: Annotated[
        str, typer.Option(help=f"The strategies, separated by commas: {', '.join(STRATEGIES)}.")
    ] = "joint,igniter,ffd++",
    scale: Annotated[
        str | None,
        typer.Option(help="Plan for other limits or rates too: slo=0.5,2 or rate=0.5,2 times SPEC's."),
    ] = None,
    truths: Annotated[
        str, typer.Option(help=f"The truths to simulate, separated by commas: {', '.join(TRUTHS)}.")
    ] = ",".join(DEFAULT),
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    seconds: Annotated[float, typer.Option(help="The simulated time of each plan in seconds.")] = 30.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.", min=0)] = 1,
    report: options.Report = None,
    json: options.Json = False,
) -> None:
    """Plan SPEC with several strategies and simulate each plan under several truths.

    A truth is an assumption about the real execution times and arrivals: `believed` is what the plan's own
    latency model predicts, `measured` the profiles; `slower` and `faster` are 10 % off them.
    """
    names = list(dict.fromkeys(strategies.split(",")))
    for name in names:
        if name not in STRATEGIES:
            raise InputError(
                f"no strategy is called {name!r}{nearest(name, STRATEGIES)}", field="--strategies"
            )
    candidates = [one for name in names for one in scaled(name, scale)]
    question = Question(spec, profiles, seconds, seed)
    simulated = chosen([name for name in truths.split(",") if name])
    with progress_bar() as bar:
        found = compared(question, candidates, simulated, bar)
    if report is not None:
        from controlplane.report.page.html import page

        write_text(report, page("Strategies compared", {"title": "Strategies compared", **plain(found)}))
        say(f"{report}: written")
    answer(found, comparison_table(found), json=json)
