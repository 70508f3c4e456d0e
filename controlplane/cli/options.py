"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

import typer

from controlplane.cli import completers
from controlplane.domain.errors import InputError
from controlplane.domain.fleet import GatewayConfig
from controlplane.domain.order import LONGEST_MS
from controlplane.domain.server_options import ServerOptions
from controlplane.files.mistakes import nearest
from controlplane.stores import url

Number = TypeVar("Number", int, float)


def local_repository(path: Path) -> Path:
    """Return a local path. Raises InputError for an object store."""
    if not url.is_store(str(path)):
        return path
    place = url.parse(str(path))
    raise InputError(
        f"{place} is not read: plans and servers need the models' files in a local folder. Mount it, or "
        f"`ctl init {place}` copies it to {place.name}; then name that folder",
        field="repository",
    )


class LauncherName(StrEnum):
    """What runs the Tritons."""

    PROCESS = "process"
    DOCKER = "docker"
    KUBERNETES = "kubernetes"


Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="The spec: workloads as YAML (docs/spec.md).")]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan: a file that `ctl plan -o` wrote.")]
Fleet = Annotated[
    str, typer.Option(help="The fleet's name.", envvar="TRISECT_FLEET", autocompletion=completers.fleets)
]
Repository = Annotated[
    Path,
    typer.Option(
        help="Your model repository: one folder for each model.",
        envvar="TRISECT_REPOSITORY",
        callback=local_repository,
    ),
]
Output = Annotated[
    Path, typer.Option(help="The folder for rendered model repositories.", envvar="TRISECT_OUTPUT")
]
Profiles = Annotated[
    Path,
    typer.Option(
        help="The folder of measured profiles; they override the built-in ones.", envvar="TRISECT_PROFILES"
    ),
]
Launcher = Annotated[
    LauncherName | None,
    typer.Option(
        help="How to start Tritons; by default docker where GPUs and an engine are, else process.",
        envvar="TRISECT_LAUNCHER",
    ),
]
Context = Annotated[
    str | None,
    typer.Option(help="With --launcher kubernetes: the kubeconfig's context; by default the current one."),
]
Namespace = Annotated[
    str | None,
    typer.Option(help="With --launcher kubernetes: the namespace; by default the context's."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
NoServe = Annotated[
    bool, typer.Option("--no-serve", help="Start no controller: dead and slow servers are not replaced.")
]


class Allowance(StrEnum):
    """What is refused unless the user allows it."""

    VIOLATIONS = "violations"
    """A plan that breaks an SLO or a limit."""
    ALL_CORES = "all-cores"
    """A plan that leaves no core for gateway and clients."""
    OVERCOMMIT = "overcommit"
    """A plan that takes more of a core than other fleets leave."""
    RENAMES = "renames"
    """Another name for a workload's endpoint that clients use."""


Allow = Annotated[
    list[str] | None,
    typer.Option(
        help="Accept what is refused otherwise, separated by commas: violations (a broken SLO or limit), "
        "all-cores (no core is left for gateway and clients), overcommit (more of a core than other fleets "
        "leave), renames (an endpoint gets another name)."
    ),
]


def allowances(given: list[str] | None) -> frozenset[Allowance]:
    """Return what `--allow` accepts. Raises InputError, with the nearest name, for anything else."""
    known = [str(one) for one in Allowance]
    names = [name for text in given or () for name in text.split(",")]
    for name in names:
        if name not in known:
            problem = f"{name!r} is none of {', '.join(known)}{nearest(name, known)}"
            raise InputError(problem, field="--allow")
    return frozenset(map(Allowance, names))


HttpPort = Annotated[int, typer.Option(help="The gateway's HTTP port.", min=1, max=65535)]
GrpcPort = Annotated[int, typer.Option(help="The gateway's gRPC port.", min=1, max=65535)]
MetricsPort = Annotated[int, typer.Option(help="The gateway's metrics port.", min=1, max=65535)]


def _fleets(what: str, default: object) -> str:
    return f"The gateway's {what}; by default the running fleet's, {default} for a new fleet."


_DEFAULTS = GatewayConfig()
FleetsHost = Annotated[str | None, typer.Option(help=_fleets("address", _DEFAULTS.host))]
FleetsHttpPort = Annotated[
    int | None, typer.Option(help=_fleets("HTTP port", _DEFAULTS.http_port), min=1, max=65535)
]
FleetsGrpcPort = Annotated[
    int | None, typer.Option(help=_fleets("gRPC port", _DEFAULTS.grpc_port), min=1, max=65535)
]
FleetsMetricsPort = Annotated[
    int | None, typer.Option(help=_fleets("metrics port", _DEFAULTS.metrics_port), min=1, max=65535)
]
FleetsCompression = Annotated[
    bool | None,
    typer.Option(
        "--compress-answers/--no-compress-answers",
        help="Compress HTTP answers for clients that accept gzip or deflate; by default as the running fleet "
        "does; a new fleet does not.",
    ),
]
FleetsLateBinding = Annotated[
    bool | None,
    typer.Option(
        "--late-binding/--no-late-binding",
        help="Let requests of a partition with several models wait at the gateway, where shorter ones pass "
        "longer ones; by default as the running fleet does; a new fleet does not.",
    ),
]
FleetsOvertake = Annotated[
    int | None,
    typer.Option(
        "--overtake-ms",
        help="With --late-binding: how long a shorter request may pass longer ones. 0: first come, first "
        "served. [1000]",
        min=0,
        max=LONGEST_MS,
    ),
]


def _collector(url: str | None) -> str | None:
    """Return the URL of a collector.

    Raises InputError for a wrong one, ModuleNotFoundError without the extra `otel`.
    """
    if url:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            problem = f"{url!r} is no URL of a collector, such as http://127.0.0.1:4318/v1/traces"
            raise InputError(problem, field="--trace-endpoint")
        import_module("opentelemetry.exporter.otlp.proto.http")
    return url


FleetsTraces = Annotated[
    str | None,
    typer.Option(
        "--trace-endpoint",
        help="Send a span of each request that its client samples to this OTLP collector over HTTP, such as "
        "http://127.0.0.1:4318/v1/traces (needs the extra otel); '' sends none; by default as the running "
        "fleet does; a new fleet sends none.",
        callback=_collector,
    ),
]
FleetsFleetWideCalls = Annotated[
    bool | None,
    typer.Option(
        "--fleet-wide-calls/--no-fleet-wide-calls",
        help="Allow calls that affect every client: shared memory, trace and log settings; by default as the "
        "running fleet does; a new fleet does not.",
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option("--tls-cert", help="Certificate with its chain (PEM): all three ports speak TLS."),
]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", help="Its key (PEM, without a password).")]
TlsClientCa = Annotated[
    Path | None,
    typer.Option("--tls-client-ca", help="Authority that signs the certificates of clients (PEM)."),
]
RequireTokens = Annotated[
    bool | None,
    typer.Option(
        "--require-tokens/--no-require-tokens",
        help="Serve only clients with a token or a certificate that `ctl token create` granted endpoints.",
    ),
]
PlainText = Annotated[
    bool | None,
    typer.Option("--plain-text/--no-plain-text", help="Allow a --host that other hosts reach without TLS."),
]
Audit = Annotated[
    bool | None,
    typer.Option("--audit/--no-audit", help="Write a line for every request to the fleet's audit.jsonl."),
]
MaxConnections = Annotated[
    int | None,
    typer.Option(
        "--max-connections",
        help="Connections that one source address may hold; by default half of all that the gateway takes.",
        min=1,
    ),
]
TritonArg = Annotated[
    list[str] | None,
    typer.Option("--triton-arg", help="--NAME=VALUE for tritonserver; the spec's `triton_args` for a fleet."),
]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", help="NAME=VALUE for the servers' environment; the spec's `env` for a fleet."),
]
MaxRate = Annotated[int | None, typer.Option(help="Requests that may begin in a second.", min=1)]
MaxRequests = Annotated[int | None, typer.Option(help="Requests that may run at once.", min=1)]
MaxBody = Annotated[
    int | None, typer.Option("--max-body", help="Bytes that the body of an inference may have.", min=1)
]

_FIGURES = (".svg", ".png", ".pdf")
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


def server_options(triton_args: list[str] | None, env: list[str] | None) -> ServerOptions:
    """Return the options of servers. Raises InputError for a wrong form and for what Trisect sets itself."""
    pairs = [text.partition("=") for text in env or ()]
    for name, equals, _ in pairs:
        if not equals:
            raise InputError(f"{name!r} is not NAME=VALUE", field="--env")
    return ServerOptions(tuple(triton_args or ()), {name: value for name, _, value in pairs})


def refuse(problem: str, given: Mapping[str, object | None]) -> None:
    """Raise InputError for the first of these options that was given: it would have no effect here."""
    for option, value in given.items():
        if value is not None:
            raise InputError(problem, field=option)


def writable(option: str) -> Callable[[Path | None], Path | None]:
    """Return a check for an option's output file, which runs before the work whose result it receives."""

    def check(path: Path | None) -> Path | None:
        if path is not None and not path.parent.is_dir():
            way_out = f"make it (`mkdir -p {path.parent}`) or name another"
            raise InputError(f"there is no directory {str(path.parent)!r}; {way_out}", field=option)
        if path is not None and path.is_dir():
            raise InputError(f"{str(path)!r} is a directory; name a file in it", field=option)
        return path

    return check


def page_file(option: str) -> Callable[[Path | None], Path | None]:
    """Return a check for an option's page: like `writable`, and its name."""

    def check(path: Path | None) -> Path | None:
        if path is not None and path.suffix != ".html":
            raise InputError(f"{str(path)!r} must end in .html", field=option)
        return writable(option)(path)

    return check


LoadTimeout = Annotated[
    float | None,
    typer.Option(
        "--load-timeout",
        help="Seconds without progress (log, memory, processor time) after which a start has failed.",
        min=1,
    ),
]

Report = Annotated[
    Path | None,
    typer.Option(
        help="Write an HTML page here (one file, needs no network).",
        callback=page_file("--report"),
    ),
]


def drawable(path: Path | None) -> Path | None:
    """Check a figure's file like `writable`, and its format. Raises InputError."""
    if path is not None and path.suffix not in _FIGURES:
        raise InputError(
            f"{str(path)!r} must end in {', '.join(_FIGURES[:-1])} or {_FIGURES[-1]}", field="--plot"
        )
    return writable("--plot")(path)


def numbers(text: str | None, field: str, kind: Callable[[str], Number]) -> tuple[Number, ...] | None:
    """Parse `1,4,16`; None gives None. Raises InputError naming the option."""
    if text is None:
        return None
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{text!r} is not a list of numbers like 1,4,16", field=field) from None
