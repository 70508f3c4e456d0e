"""Options that several verbs share, written once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class LauncherName(StrEnum):
    """What runs the Tritons."""

    PROCESS = "process"


Fleet = Annotated[str, typer.Option(help="The fleet's name.")]
Repository = Annotated[Path, typer.Option(help="The source models, one folder each.")]
Output = Annotated[Path, typer.Option(help="Where rendered model repositories are written.")]
Profiles = Annotated[Path, typer.Option(help="Measured profiles; they override the built-in catalogue.")]
Launcher = Annotated[LauncherName | None, typer.Option(help="What runs the Tritons; by default what fits.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else there.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AllowViolations = Annotated[
    bool, typer.Option("--allow-violations", help="Accept a plan that does not keep its promises.")
]
Host = Annotated[str, typer.Option(help="The address the gateway listens on.")]
HttpPort = Annotated[int, typer.Option(help="The gateway's HTTP port.", min=1, max=65535)]
GrpcPort = Annotated[int, typer.Option(help="The gateway's gRPC port.", min=1, max=65535)]
MetricsPort = Annotated[int, typer.Option(help="The gateway's metrics port.", min=1, max=65535)]

DEFAULT_FLEET = "default"
DEFAULT_REPOSITORY = Path("model_repository")
DEFAULT_OUTPUT = Path("triton_configs")
DEFAULT_PROFILES = Path("profiles")
