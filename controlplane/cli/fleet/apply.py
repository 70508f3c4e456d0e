"""`ctl apply`: converge a fleet to a plan, then return."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import options
from controlplane.cli.fleet.targets import Wish, target
from controlplane.cli.options import Allowance
from controlplane.cli.output import say_when_compiling
from controlplane.domain.fleet import Cluster
from controlplane.runtime.fleet.preflight import FollowOptions


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
    allow: options.Allow = None,
    as_planned: Annotated[
        bool,
        typer.Option("--as-planned", help="Undo the controller's redirects since this plan was applied."),
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
    json: options.Json = False,
) -> None:
    """Make the running fleet match PLAN.

    New servers start and answer a test inference before traffic moves to them; old servers finish their
    requests before they stop. Applying the same plan again changes nothing, and keeps the larger shares to
    which the controller redirected. After an interruption, the next apply continues from what runs. A plan
    that renames an endpoint in use is refused, unless you confirm it or give --allow renames. Where a
    cluster has controllers for the fleet, this writes its Fleet object, and they apply it; --dry-run prints
    the object.
    """
    allowed = options.allowances(allow)
    if Allowance.VIOLATIONS not in allowed:
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
    interactive = not dry_run and not yes and not json and sys.stdin.isatty()
    wish = Wish(
        plan,
        fleet,
        repository,
        profiles,
        output,
        launcher,
        Cluster(context, namespace),
        gateway,
        FollowOptions(spec, follow_load, dwell, Allowance.ALL_CORES in allowed),
        allowed,
        load_timeout_s=load_timeout,
        require_quota=require_quota,
        as_planned=as_planned,
        controlled=not no_serve,
        confirmed=interactive,
    )
    found = target(wish)
    if dry_run:
        found.preview(json=json)
    elif not interactive or found.agreed():
        found.change(json=json)
