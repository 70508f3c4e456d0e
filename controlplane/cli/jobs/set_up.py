"""`ctl doctor`, `init`, `demo` and `schema`: what a host and a repository have, every step, documents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli import completers, options
from controlplane.cli.endings import EXIT_NO
from controlplane.cli.output import answer, print_json, progress_bar, say, say_when_compiling
from controlplane.domain.errors import InfeasibleError, InputError
from controlplane.domain.serving import LauncherName
from controlplane.report.words import counted, printable

if TYPE_CHECKING:
    from controlplane.runtime.demo.demo import Outcome


def doctor(
    launcher: Annotated[
        LauncherName | None,
        typer.Option(help="Check what this launcher needs; by default process and docker."),
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="For kubernetes: the kubeconfig's context; by default the current one.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="For kubernetes: the namespace; by default the context's.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Check this host for GPUs, Triton, HAProxy, Docker and quotas; say how to get what is missing.

    With `--launcher kubernetes`, check a cluster: permissions, nodes, whether it admits a server's pod.
    """
    from rich.table import Table

    from controlplane.cli import launcher_registry
    from controlplane.domain.fleet import Cluster
    from controlplane.files.fleets import fleets, state_root
    from controlplane.runtime.jobs.doctor import examine

    checked = launcher_registry.local_launchers()
    if launcher is not None:
        checked = (launcher_registry.launcher(launcher, Cluster(context, namespace)),)
    found = examine(checked, fleets(state_root()))
    table = Table(box=None, pad_edge=False, show_header=False)
    for capability in found:
        mark = "yes" if capability.available else "no"
        remedy = "" if capability.available or not capability.remedy else f" -> {capability.remedy}"
        table.add_row(mark, capability.name, f"{capability.detail}{remedy}")
    answer({"capabilities": found}, table, json=json)


_Repository = Annotated[
    Path,
    typer.Argument(
        metavar="REPOSITORY",
        help="A model repository as Triton serves it; one in s3://, gs:// or as:// is copied here first.",
    ),
]


def init(
    repository: _Repository,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The spec to write.", callback=options.writable("--output"))
    ] = Path("spec.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace a spec that exists.")] = False,
    launcher: options.Launcher = None,
    given: options.SetStart = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Exit code 1 unless every model is ready. A spec that exists stays as it is."
        ),
    ] = False,
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


_FLEET = "demo"
_ON_CPU = (Path("model_repository/demo.yaml"), options.DEFAULT_REPOSITORY)
_ON_GPU = (Path("gpu_kit/demo.yaml"), Path("gpu_kit/models"))
"""Spec and repository. The model of the second needs no more of a GPU than its driver."""


def demo(
    spec: Annotated[Path, typer.Option(help="The spec of the demo's workloads.")] = _ON_CPU[0],
    device: Annotated[
        str, typer.Option(help="`cpu`, or `gpu` for this host's first GPU, with a model of its own.")
    ] = "cpu",
    repository: options.Repository = options.DEFAULT_REPOSITORY,
    output: options.Output = options.DEFAULT_OUTPUT,
    given: options.SetServe = None,
    name: Annotated[
        str | None, typer.Option(help="Name the fleet demo-NAME, to run beside another demo of this host.")
    ] = None,
    plan_file: Annotated[Path | None, typer.Option(help="Keep the plan in this file.")] = None,
    json: options.Json = False,
) -> None:
    """Run every step with real Tritons: profile, plan, apply, load, repair, destroy.

    With --set serve.launcher=kubernetes in pods that this host reaches, with the repository in
    $TRISECT_MODELS. Prints predicted beside measured latencies. It slows one server down until it breaks its
    SLO, and the controller redirects its traffic to the shadow.
    """
    from controlplane.cli import wiring
    from controlplane.domain import units
    from controlplane.domain.fleet import Cluster
    from controlplane.domain.settings import ServeSettings
    from controlplane.files.fleets import state_root
    from controlplane.files.set_values import with_values
    from controlplane.runtime.demo.demo import Demo, Scene, run

    section = with_values(ServeSettings(), given or []).serve
    launcher = section.launcher or options.launcher_of_environment()
    if device != "cpu":
        launcher = launcher or LauncherName.PROCESS
        spec, repository = _ON_GPU if (spec, repository) == _ON_CPU else (spec, repository)
    fleet_name = _FLEET if name is None else f"{_FLEET}-{units.safe_name(name, '--name')}"
    say_when_compiling()
    scene = Scene(
        spec=spec,
        repository=repository,
        output=output,
        scratch=state_root() / "profiling",
        section=section,
        slowed_by_request=repository == _ON_GPU[1],
    )
    cluster = Cluster(section.context, section.namespace)
    with progress_bar() as bar:
        fleet = wiring.fleet(fleet_name, launcher_name=launcher, cluster=cluster)
        steps = Demo(scene, fleet, wiring.place(device, fleet.launcher), bar, say)
        outcome = run(steps, plan_file)
    if not _print(outcome, json=json):
        raise typer.Exit(EXIT_NO)


def _print(outcome: Outcome, *, json: bool) -> bool:
    """Print a demo's tables or its document; return whether no request was lost and a violation repaired."""
    from controlplane.report.tables.demo_table import demo_table, repair_lines, repair_table
    from controlplane.report.tables.terminal import show

    failed = sum(row.failed for row in outcome.rows)
    repair = outcome.repair
    lost = 0 if repair is None else sum(span.failed for span in repair.spans)
    if json:
        print_json({"workloads": outcome.rows, "repair": repair, "no_repair": outcome.no_repair or None})
        return repair is not None and not failed and not lost
    show(demo_table(outcome.rows))
    print(f"\n{sum(row.answered for row in outcome.rows)} requests answered, {failed} failed\n")
    if repair is None:
        print(f"no violation was repaired: {outcome.no_repair}")
        return False
    print("\n".join(repair_lines(repair)), end="\n\n")
    show(repair_table(repair))
    print(f"\n{lost} requests failed")
    return not failed and not lost


def schema(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A verb, `spec` or `error`.", autocompletion=completers.documents
        ),
    ],
) -> None:
    """Print the JSON Schema of what a verb prints with --json.

    `spec` is the input of `ctl plan`, `error` what a failing verb prints, `controller` a line of its output.
    """
    from controlplane.cli import schemas
    from controlplane.files.mistakes import nearest
    from controlplane.files.writing import to_json

    if name not in schemas.NAMES:
        raise InputError(f"there is no document {name!r}{nearest(name, schemas.NAMES)}", field="NAME")
    print(to_json(schemas.schema(name)), end="")
