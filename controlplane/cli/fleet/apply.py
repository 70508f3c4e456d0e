"""`ctl apply`: converge a fleet to a plan, then return."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import cluster, launcher_registry, options, wiring
from controlplane.cli.endings import EXIT_NO
from controlplane.cli.fleet import committed
from controlplane.cli.fleet.committed import converged
from controlplane.cli.output import answer, say, say_when_compiling
from controlplane.domain.fleet import Cluster
from controlplane.files.plans import read_plan
from controlplane.render.source import with_composing
from controlplane.report.tables.change_table import terms_line
from controlplane.runtime.fleet import controller_process, preflight
from controlplane.runtime.fleet.execute import commands, describe
from controlplane.runtime.fleet.rendering import check_models
from controlplane.runtime.jobs.completing import complete_or_refuse


def apply(
    plan: options.PlanFile,
    repository: options.Repository = options.DEFAULT_REPOSITORY,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    output: options.Output = options.DEFAULT_OUTPUT,
    launcher: options.Launcher = None,
    context: options.Context = None,
    namespace: options.Namespace = None,
    fleet: options.Fleet = options.DEFAULT_FLEET,
    host: options.FleetsHost = None,
    http_port: options.FleetsHttpPort = None,
    grpc_port: options.FleetsGrpcPort = None,
    metrics_port: options.FleetsMetricsPort = None,
    compress_answers: options.FleetsCompression = None,
    fleet_wide_calls: options.FleetsFleetWideCalls = None,
    late_binding: options.FleetsLateBinding = None,
    overtake_ms: options.FleetsOvertake = None,
    trace_endpoint: options.FleetsTraces = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    tls_client_ca: options.TlsClientCa = None,
    require_tokens: options.RequireTokens = None,
    plain_text: options.PlainText = None,
    audit: options.Audit = None,
    max_connections: options.MaxConnections = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the steps and the servers' commands; change nothing.")
    ] = False,
    yes: options.Yes = False,
    load_timeout: options.LoadTimeout = None,
    require_quota: Annotated[
        bool, typer.Option("--require-quota", help="Fail where this host cannot enforce shares.")
    ] = False,
    allow_violations: options.AllowViolations = False,
    all_cores: options.AllCores = False,
    overcommit: options.Overcommit = False,
    as_planned: Annotated[
        bool,
        typer.Option("--as-planned", help="Undo the controller's redirects since this plan was applied."),
    ] = False,
    rename_endpoints: Annotated[
        bool,
        typer.Option("--rename-endpoints", help="Accept that a workload's endpoint gets another name."),
    ] = False,
    spec: Annotated[
        Path | None,
        typer.Option(
            help="The spec that PLAN was made from, kept with the fleet so that it can follow its load."
        ),
    ] = None,
    follow_load: Annotated[
        bool | None,
        typer.Option(
            "--follow-load/--no-follow-load",
            help="Let the controller change the plan with the rates that arrive (not on Kubernetes); by "
            "default as the running fleet does; a new fleet does not.",
        ),
    ] = None,
    dwell: Annotated[
        float | None,
        typer.Option(
            help="Seconds for which a cheaper plan must have been enough before it is applied. [300]", min=1.0
        ),
    ] = None,
    no_serve: options.NoServe = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="With --dry-run: exit code 1 if anything would change.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Make the running fleet match PLAN.

    New servers start and answer a test inference before traffic moves to them; old servers finish their
    requests before they stop. Applying the same plan again changes nothing, and keeps the larger shares to
    which the controller redirected. After an interruption, the next apply continues from what runs. A plan
    that renames an endpoint in use is refused, unless you confirm it or give --rename-endpoints. Where a
    cluster has controllers for the fleet, this writes its Fleet object, and they apply it; --dry-run prints
    the object.
    """
    options.refuse("is for --dry-run", {} if dry_run else {"--exit-code": exit_code or None})
    if not allow_violations:
        say_when_compiling()  # only verify compiles
    gateway = {
        "--host": host or None,
        "--http-port": http_port,
        "--grpc-port": grpc_port,
        "--metrics-port": metrics_port,
        "--compress-answers": compress_answers,
        "--fleet-wide-calls": fleet_wide_calls,
        "--late-binding": late_binding,
        "--overtake-ms": overtake_ms,
        "--trace-endpoint": trace_endpoint,
        "--tls-cert": tls_cert,
        "--tls-key": tls_key,
        "--tls-client-ca": tls_client_ca,
        "--require-tokens": require_tokens,
        "--plain-text": plain_text,
        "--audit": audit,
        "--max-connections": max_connections,
    }
    parsed, document = read_plan(plan)
    chosen = wiring.chosen_launcher(fleet, launcher)
    if chosen is options.LauncherName.KUBERNETES:
        # It counts devices of this host.
        options.refuse(
            "is not for --launcher kubernetes",
            {"--follow-load": follow_load or None, "--late-binding": late_binding or None},
        )
    else:
        options.refuse("is for --launcher kubernetes", {"--context": context, "--namespace": namespace})
        cores = len(os.sched_getaffinity(0))
        preflight.check_spare_core(parsed, document, cores, say, accepted=all_cores)
    if not allow_violations:
        preflight.check_promises(parsed, document, profiles)
    if chosen is options.LauncherName.KUBERNETES:
        place = wiring.chosen_cluster(fleet, Cluster(context, namespace))
        kept = cluster.fleet_of_controllers(wiring.fleet_files(fleet), place)
        if kept is not None:
            options.refuse(
                "is set where gateway and controllers of the cluster are installed",
                {**gateway, "--as-planned": as_planned or None, "--no-serve": no_serve or None},
            )
            if dry_run:
                committed.show_manifest(fleet, parsed, allow_violations=allow_violations, json=json)
                return
            report = kept.apply(
                parsed,
                committed.settings_of(repository, output, place),
                allow_violations=allow_violations,
                rename_endpoints=rename_endpoints,
            )
            committed.show_report(fleet, report, json=json)
            return
    follow = preflight.checked_follow(
        wiring.fleet_files(fleet),
        parsed,
        preflight.FollowOptions(spec, follow_load, dwell, all_cores),
        say,
    )
    endpoints = wiring.chosen_gateway(fleet, gateway)
    place = wiring.chosen_cluster(fleet, Cluster(context, namespace))
    built = wiring.fleet(fleet, launcher_name=chosen, cluster=place)
    settings = preflight.settings(
        parsed, built, repository=repository, output=output, endpoints=endpoints, cluster=place
    )
    if load_timeout is not None:
        settings = replace(settings, load_timeout_s=load_timeout)
    if built.launcher.inventory() is None:
        present = launcher_registry.servers_of_host()
        preflight.refuse_namesake(present, built.files)
        held = preflight.shares_of_others(present, fleet)
        preflight.check_shares(parsed, document, settings.devices, held, say, accepted=overcommit)
        planned = sorted({placement.model for _, _, placement in parsed.placements()})
        models = with_composing(repository, planned)
        completer = wiring.completer(built.launcher, parsed.options, load_timeout)
        complete_or_refuse(completer, repository, models)
        check_models(parsed, repository, output, built.launcher, say)
    preflight.check_quota(built.launcher, say, required=require_quota)
    interactive = not yes and not json and sys.stdin.isatty()
    request = preflight.ApplyRequest(
        parsed, settings, as_planned, rename_endpoints or interactive, controlled=not no_serve
    )
    if dry_run or interactive:
        actions, changed = built.preview(request), built.changed_terms(parsed)
        steps = describe(actions)
        if dry_run:
            shown = tuple(commands(actions, built.launcher))
            text = "\n\n".join(("\n".join(steps) or terms_line(changed), *shown))
            answer({"fleet": fleet, "steps": steps, "terms": changed, "commands": shown}, text, json=json)
            if exit_code and (steps or changed):
                raise typer.Exit(EXIT_NO)
            return
        print("\n".join(steps) or terms_line(changed))
        if steps and not options.agreed("Go on?"):
            return
    say(f"launching with {built.launcher.name}")
    serving = controller_process.left_alone if no_serve else controller_process.left_running
    with serving(built.files):
        outcome = built.apply(request)
        preflight.keep_follow(built.files, follow, profiles)
    preflight.warn_of_old_servers(outcome.servers, built)
    listening = {"host": endpoints.host, "http": endpoints.http_port, "grpc": endpoints.grpc_port}
    behind = (
        f"fleet {fleet}: {len(outcome.servers)} servers behind "
        f"http://{endpoints.host}:{endpoints.http_port} and grpc {endpoints.host}:{endpoints.grpc_port}"
    )
    done = {**converged(fleet, outcome), "listening": listening}
    answer(done, behind if outcome.actions else terms_line(outcome.terms), json=json)
