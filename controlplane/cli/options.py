"""Options that several verbs share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from controlplane.cli import completers
from controlplane.domain.errors import InputError
from controlplane.domain.serving import LauncherName


def local_repository(path: Path) -> Path:
    """Return a local path. Raises InputError for an object store."""
    from controlplane.stores import url

    if not url.is_store(str(path)):
        return path
    place = url.parse(str(path))
    raise InputError(
        f"{place} is not read: plans and servers need the models' files in a local folder. Mount it, or "
        f"`ctl init {place}` copies it to {place.name}; then name that folder",
        field="repository",
    )


def launcher_of_environment() -> LauncherName | None:
    """Return the launcher of new fleets whose section names none.

    Raises InputError for a name that is none.
    """
    variable = "TRISECT_LAUNCHER"
    name = os.environ.get(variable)
    if not name:
        return None
    if name not in list(LauncherName):
        raise InputError(f"{name!r} is none of {', '.join(LauncherName)}", field=f"${variable}")
    return LauncherName(name)


Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="The spec: workloads as YAML (docs/spec.md).")]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan: a file that `ctl plan -o` wrote.")]
Fleet = Annotated[
    str, typer.Option(help="The fleet's name.", envvar="TRISECT_FLEET", autocompletion=completers.fleets)
]
Repository = Annotated[
    Path, typer.Option(help="Your model repository.", envvar="TRISECT_REPOSITORY", callback=local_repository)
]
Output = Annotated[
    Path, typer.Option(help="The folder for rendered model repositories.", envvar="TRISECT_OUTPUT")
]
Profiles = Annotated[Path, typer.Option(help="The folder of measured profiles.", envvar="TRISECT_PROFILES")]
Launcher = Annotated[
    LauncherName | None,
    typer.Option(
        help="How to start Tritons; by default docker where GPUs and an engine are, else process.",
        envvar="TRISECT_LAUNCHER",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
NoController = Annotated[
    bool, typer.Option("--no-controller", help="Start no controller: dead and slow servers are not replaced.")
]


class Allowance(StrEnum):
    """What is refused unless the user allows it, as the help of `--allow` says."""

    VIOLATIONS = "violations"
    ALL_CORES = "all-cores"
    OVERCOMMIT = "overcommit"
    RENAMES = "renames"


Allow = Annotated[
    list[str] | None,
    typer.Option(
        help="Accept, separated by commas: violations (a broken SLO or limit), all-cores (none is left for "
        "gateway and clients), overcommit (more than other fleets leave), renames (of an endpoint)."
    ),
]


def allowances(given: list[str] | None) -> frozenset[Allowance]:
    """Return what `--allow` accepts. Raises InputError, with the nearest name, for anything else."""
    from controlplane.files.mistakes import nearest

    known = [str(one) for one in Allowance]
    names = [name for text in given or () for name in text.split(",")]
    for name in names:
        if name not in known:
            problem = f"{name!r} is none of {', '.join(known)}{nearest(name, known)}"
            raise InputError(problem, field="--allow")
    return frozenset(map(Allowance, names))


MaxRate = Annotated[int | None, typer.Option(help="Requests that may begin in a second.", min=1)]
MaxRequests = Annotated[int | None, typer.Option(help="Requests that may run at once.", min=1)]
MaxBody = Annotated[
    int | None, typer.Option("--max-body", help="Bytes that the body of an inference may have.", min=1)
]

DEFAULT_FLEET = "default"
DEFAULT_REPOSITORY = Path("model_repository")
DEFAULT_OUTPUT = Path("triton_configs")
DEFAULT_PROFILES = Path("profiles")


def agreed(question: str) -> bool:
    """Ask for confirmation and return whether it was given. Raises InputError where stdin has no answer."""
    try:
        return input(f"{question} [y/N]: ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        raise InputError("stdin gave no answer; --yes skips the question", field="--yes") from None


def of_this_host(launcher: LauncherName | None) -> None:
    """Raise InputError for the launcher of a cluster.

    A profile needs its device undisturbed, which a cluster's other pods are free to break, and GPU readings
    (NVML), which do not reach into a pod.
    """
    if launcher is LauncherName.KUBERNETES:
        raise InputError(
            "measures a device of this host, which nothing else may use meanwhile: run it on a node of the "
            "cluster, with process or docker",
            field="--launcher",
        )


def _listing(kind: str) -> Callable[[list[str] | None], list[str] | None]:
    """Return what lists the keys of a verb's settings in place of setting one, and ends the command."""

    def listed(given: list[str] | None) -> list[str] | None:
        if "help" not in (given or ()):
            return given
        from controlplane.domain import settings
        from controlplane.files.set_values import keys

        rows = [(*key, settings.NOTES.get(key.path, "")) for key in keys(getattr(settings, kind))]
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(text.ljust(width) for text, width in zip(row, wide, strict=True)).rstrip())
        raise typer.Exit

    return listed


def _set(kind: str) -> Any:
    return typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=completers.settings(kind),
        help="One setting, such as quantile=0.99 or serve.listen.http=9000 of `ctl plan`; may be repeated "
        "(`--set help` lists the keys).",
        callback=_listing(kind),
        is_eager=True,
    )


SetPlan = Annotated[list[str] | None, _set("PlanSettings")]
SetServe = Annotated[list[str] | None, _set("ServeSettings")]
SetStart = Annotated[list[str] | None, _set("StartSettings")]
SetProfile = Annotated[list[str] | None, _set("ProfileSettings")]


def refuse(problem: str, given: Mapping[str, object | None]) -> None:
    """Raise InputError for the first of these options that was given: it would have no effect here."""
    for option, value in given.items():
        if value is not None:
            raise InputError(problem, field=option)


def writable(option: str, *suffixes: str) -> Callable[[Path | None], Path | None]:
    """Return a check for an option's output file, which runs before the work whose result it receives."""

    def check(path: Path | None) -> Path | None:
        if path is not None and suffixes and path.suffix not in suffixes:
            ends = " or ".join(filter(None, (", ".join(suffixes[:-1]), suffixes[-1])))
            raise InputError(f"{str(path)!r} must end in {ends}", field=option)
        if path is not None and not path.parent.is_dir():
            way_out = f"make it (`mkdir -p {path.parent}`) or name another"
            raise InputError(f"there is no directory {str(path.parent)!r}; {way_out}", field=option)
        if path is not None and path.is_dir():
            raise InputError(f"{str(path)!r} is a directory; name a file in it", field=option)
        return path

    return check


Report = Annotated[
    Path | None, typer.Option(help="Write an HTML page here.", callback=writable("--report", ".html"))
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.", min=0)]
