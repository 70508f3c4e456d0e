"""`ctl import`: profiles from files of other tools."""

from __future__ import annotations

from typing import Annotated

import typer

from controlplane.cli import options
from controlplane.cli.output import print_json, say
from controlplane.domain.profile import Tool
from controlplane.report.words import counted


def import_(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model that was measured.")],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="What the tool wrote, after its batch: 8:FILE; for nsys 8x200:FILE, with the number of "
            "executions; for model-analyzer the file alone.",
        ),
    ],
    tool: Annotated[Tool, typer.Option("--from", help="The tool.")],
    device: Annotated[str, typer.Option(help="The GPU type, like v100, or cpu.")],
    at: Annotated[
        float,
        typer.Option(help="The share of the device in percent, for times of batches.", min=1.0, max=100.0),
    ] = 100.0,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    json: options.Json = False,
) -> None:
    """Make or extend the profile of MODEL from files of a tool that measured one request at a time.

    Times of batches join those that came from other tools before: perf_analyzer -f, Model Analyzer's
    metrics-model-inference.csv, AIPerf's profile_export_aiperf.json. Counters join a profile that is there:
    Nsight Systems' SQLite export, Nsight Compute's CSV.
    """
    from controlplane.cli.jobs.profile import written_document
    from controlplane.files.measurements.profiles import write_profile
    from controlplane.runtime.jobs.elsewhere import imported
    from controlplane.runtime.jobs.profile import Written

    folder = profiles.resolve()
    one, notes = imported(tool, files, model=model, device=device, percent=at, profiles=folder)
    written = Written(one, write_profile(folder, one), 0.0)
    if json:
        print_json({"profiles": [written_document(written, 0)]})
    else:
        print(f"{written.path}: {counted(len(one.points), 'point')} with what {tool} measured")
    for line in notes:
        say(f"warning: {line}")
