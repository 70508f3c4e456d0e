"""The settings of a gateway: of a new one, and of a running one whose options change."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import secrets
import shutil
import socket
from dataclasses import asdict

from controlplane.domain.errors import GatewayError, MissingTool
from controlplane.domain.fleet import Endpoints
from controlplane.domain.plan import MOST_SERVERS
from controlplane.files.gateway import FormerFacade, GatewaySettings, ProtectionFields
from controlplane.gateway import store
from controlplane.gateway.listeners import listen

_SECRET_BYTES = 8
_OWN_PORTS = range(18000, 20000)
"""Launchers give servers those from 20000 on."""
_MORE_PATHS = ("/usr/sbin", "/usr/local/sbin")


def new(options: Endpoints, slots: int) -> GatewaySettings:
    """Return the settings of a gateway that does not run.

    Raises GatewayError for a port in use, MissingTool.
    """
    _refuse_taken(options)
    log_port, facade_http_port, facade_grpc_port = _own_ports()
    return GatewaySettings(
        host=options.host,
        http_port=options.http_port,
        grpc_port=options.grpc_port,
        metrics_port=options.metrics_port,
        log_port=log_port,
        facade_http_port=facade_http_port,
        facade_grpc_port=facade_grpc_port,
        slots=slots,
        members=MOST_SERVERS,
        haproxy=haproxy(),
        compress_answers=options.compress_answers,
        fleet_wide_calls=options.fleet_wide_calls,
        late_binding=options.late_binding,
        trace_endpoint=options.trace_endpoint,
        log_secret=secrets.token_hex(_SECRET_BYTES),
        facade_secret=secrets.token_hex(_SECRET_BYTES),
        protection=ProtectionFields(**asdict(options.protection)),
    )


def changed(present: GatewaySettings, options: Endpoints, slots: int) -> GatewaySettings:
    """Return a running gateway's settings with these options.

    While its HAProxy is replaced, the facade knows the earlier one by the secret before. Raises GatewayError
    for options that cannot change while it runs.
    """
    _refuse_another_place(present, options)
    if present.fleet_wide_calls != options.fleet_wide_calls:
        raise GatewayError(
            f"this fleet's gateway runs with --{'' if present.fleet_wide_calls else 'no-'}fleet-wide-calls, "
            "which cannot change while it runs: leave --fleet-wide-calls and --no-fleet-wide-calls out, or "
            "`ctl destroy` the fleet first"
        )
    update: dict[str, object] = {
        "slots": max(present.slots, slots),
        "compress_answers": options.compress_answers,
        "late_binding": options.late_binding,
        "trace_endpoint": options.trace_endpoint,
        # Of a change that was interrupted: its HAProxy may still run.
        "former": present.former,
    }
    if present.protection.value() != options.protection:
        update |= {
            "protection": ProtectionFields(**asdict(options.protection)),
            "facade_secret": secrets.token_hex(_SECRET_BYTES),
            "former": FormerFacade(secret=present.facade_secret, tokens=present.protection.tokens),
        }
    return present.model_copy(update=update)


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


def _own_ports() -> tuple[int, int, int]:
    """One for the log (UDP) and two for the facade (TCP).

    Below the range that outgoing connections use: a port must still be there after a restart.
    """
    kinds = (socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_STREAM)
    found: list[int] = []
    for port in random.sample(_OWN_PORTS, len(_OWN_PORTS)):
        with socket.socket(socket.AF_INET, kinds[len(found)]) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == len(kinds):
            return found[0], found[1], found[2]
    raise GatewayError(f"no free port between {_OWN_PORTS.start} and {_OWN_PORTS.stop}")


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
