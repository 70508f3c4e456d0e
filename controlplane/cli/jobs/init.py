"""`ctl init`: a spec's skeleton from a model repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import options
from controlplane.cli.endings import EXIT_NO
from controlplane.cli.output import print_json, say
from controlplane.domain.errors import InfeasibleError, InputError
from controlplane.report.words import counted, printable

_Repository = Annotated[
    Path,
    typer.Argument(
        metavar="REPOSITORY",
        help="A model repository as Triton serves it; one in s3://, gs:// or as:// is copied here first.",
    ),
]
_Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Exit code 1 unless every model is ready. A spec that exists stays as it is.",
    ),
]


def init(
    repository: _Repository,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The spec to write.", callback=options.writable("--output")),
    ] = Path("spec.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace a spec that exists.")] = False,
    launcher: options.Launcher = None,
    given: options.SetStart = None,
    check: _Check = False,
    json: options.Json = False,
) -> None:
    """Look at every model of REPOSITORY and write the skeleton of a spec. Measures nothing.

    Where a configuration is missing or partial, a temporary Triton completes it; the repository stays as it
    is. If no model can be planned, nothing is written and the exit code is 3.
    """
    from controlplane.cli import launcher_registry, wiring
    from controlplane.domain.settings import StartSettings
    from controlplane.domain.tensors import Readiness
    from controlplane.files.set_values import with_values
    from controlplane.files.writing import write_text
    from controlplane.report.tables.observed_table import survey_table
    from controlplane.report.tables.terminal import show
    from controlplane.runtime.jobs.survey import skeleton, survey

    options.of_this_host(launcher)
    kept = output.is_file() and not force
    if kept and not check:
        raise InputError("exists already; --force replaces it, -o names another", file=str(output))
    repository = _copied(repository)
    if not repository.is_dir():
        problem = "is not a directory; name the folder that holds one folder for each model"
        raise InputError(problem, file=str(repository), field="REPOSITORY")
    settings = with_values(StartSettings(), given or [])
    _name_what_is_beside(repository)
    started_by = launcher_registry.launcher(launcher)
    findings = survey(repository, wiring.completer(started_by, settings.options, settings.load_timeout_s))
    planned = [one for one in findings if one.state is not Readiness.UNSUPPORTED]
    if planned and not kept:
        write_text(output, skeleton(findings, str(repository), wiring.main_device()))
    if json and planned:
        print_json({"repository": str(repository), "spec": str(output), "models": findings})
    elif not json:
        show(survey_table(findings))
    if not planned:
        reasons = "; ".join(f"{one.model}: {one.note}" for one in findings)
        raise InfeasibleError(f"{repository}: no model of it can be planned: {reasons}")
    if kept:
        say(f"{output}: exists already and stays as it is; --force replaces it")
    else:
        say(f"{output}: {counted(len(planned), 'workload')}; write the SLOs and rates, then `ctl profile`")
    if check and any(one.state is not Readiness.READY for one in findings):
        raise typer.Exit(EXIT_NO)


def _copied(path: Path) -> Path:
    """Return a local path, for an object store the path of a copy in the current directory.

    Raises InputError, EngineError.
    """
    from controlplane.stores import url

    if not url.is_store(str(path)):
        return path
    # The client of the stores belongs to an extra, and a local repository needs none.
    from controlplane.stores import copying

    place = url.parse(str(path))
    folder = Path(place.name)
    copied = copying.copy(place, folder)
    say(f"{place}: copied {copied.files} files, {copied.size_bytes / 1e6:.1f} MB, to {folder}")
    return folder


def _name_what_is_beside(repository: Path) -> None:
    """Warn of folders that are no models, and say which files no server will have."""
    from controlplane.render.source import files_beside, no_models

    for name in no_models(repository):
        say(
            f"warning: {printable(str(repository / name), layout='')} is no model: it has neither a "
            "config.pbtxt nor a version (a folder named 1 with the model's files); no server has it, so what "
            "a model reads there belongs into the model's folder"
        )
    beside = files_beside(repository)
    if beside:
        names = printable(", ".join(beside), layout="")
        say(f"{names}: beside the models, so no server has them; what a model reads belongs into its folder")
