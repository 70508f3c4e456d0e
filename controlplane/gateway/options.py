"""The settings of a gateway: of a new one, and of a running one whose options change."""

from __future__ import annotations

import os
import resource
import shutil
from dataclasses import replace

from controlplane.domain.errors import GatewayError, MissingTool
from controlplane.domain.fleet import Endpoints
from controlplane.domain.plan import MOST_SERVERS
from controlplane.files.gateway import FormerFacade, GatewaySettings
from controlplane.gateway import store
from controlplane.gateway.listeners import listen

_MORE_PATHS = ("/usr/sbin", "/usr/local/sbin")


def new(options: Endpoints, slots: int) -> GatewaySettings:
    """Return the settings of a gateway that does not run.

    Raises GatewayError for a port in use, MissingTool.
    """
    _refuse_taken(options)
    return GatewaySettings(
        host=options.host,
        http_port=options.http_port,
        grpc_port=options.grpc_port,
        metrics_port=options.metrics_port,
        slots=slots,
        members=MOST_SERVERS,
        haproxy=haproxy(),
        compress_answers=options.compress_answers,
        fleet_wide_calls=options.fleet_wide_calls,
        late_binding=options.late_binding,
        trace_endpoint=options.trace_endpoint,
        protection=options.protection,
    )


def changed(present: GatewaySettings, options: Endpoints, slots: int) -> GatewaySettings:
    """Return a running gateway's settings with these options.

    While its HAProxy is replaced, the facade serves the earlier one by its own rules. Raises GatewayError for
    options that cannot change while it runs.
    """
    _refuse_another_place(present, options)
    if present.fleet_wide_calls != options.fleet_wide_calls:
        raise GatewayError(
            f"this fleet's gateway runs with --{'' if present.fleet_wide_calls else 'no-'}fleet-wide-calls, "
            "which cannot change while it runs: leave --fleet-wide-calls and --no-fleet-wide-calls out, or "
            "`ctl destroy` the fleet first"
        )
    # `former` is perhaps of a change that was interrupted: its HAProxy may still run.
    unchanged = present.protection == options.protection
    return replace(
        present,
        slots=max(present.slots, slots),
        compress_answers=options.compress_answers,
        late_binding=options.late_binding,
        trace_endpoint=options.trace_endpoint,
        protection=options.protection,
        former=present.former if unchanged else FormerFacade(present.protection.tokens),
    )


def slot_count(endpoints: int) -> int:
    """Return the slots for so many endpoints. Raises GatewayError where open files allow too few."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    count = store.slot_count(limit, MOST_SERVERS, endpoints)
    if count < 2 * endpoints:
        needed = store.descriptors(2 * endpoints, MOST_SERVERS)
        raise GatewayError(
            f"{endpoints} endpoints need {2 * endpoints} slots to move all at once, but {limit} open files "
            f"allow {count}; raise the hard limit (ulimit -Hn) to {needed}"
        )
    return count


def haproxy() -> str:
    """Return the program's path. Raises MissingTool."""
    search = os.pathsep.join((os.environ.get("PATH", os.defpath), *_MORE_PATHS))
    found = shutil.which("haproxy", path=search)
    if found is None:
        raise MissingTool("HAProxy is not installed; install it with `apt-get install haproxy`")
    return found


def _refuse_another_place(present: GatewaySettings, options: Endpoints) -> None:
    wanted = (options.host, options.http_port, options.grpc_port, options.metrics_port)
    if (present.host, present.http_port, present.grpc_port, present.metrics_port) != wanted:
        raise GatewayError(
            f"this fleet's gateway listens on {present.host}:{present.http_port} (HTTP), "
            f":{present.grpc_port} (gRPC) and :{present.metrics_port} (metrics), and does not "
            "move: leave --host, --http-port, --grpc-port and --metrics-port out, or "
            "`ctl destroy` the fleet first"
        )


def _refuse_taken(options: Endpoints) -> None:
    ports = (("HTTP", options.http_port), ("gRPC", options.grpc_port), ("metrics", options.metrics_port))
    for name, port in ports:
        try:
            listen(options.host, port).close()
        except OSError as error:
            raise GatewayError(
                f"port {port} ({name}) on {options.host} cannot be used: {error.strerror}; "
                "free it or choose another one"
            ) from error
