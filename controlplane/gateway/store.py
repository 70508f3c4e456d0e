"""The slot table on disk, and every text that HAProxy starts from."""

from __future__ import annotations

import hashlib
import os
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from controlplane.domain.errors import EngineError, GatewayError, InputError
from controlplane.domain.plan import MOST_SERVERS
from controlplane.files.gateway import (
    GatewaySettings,
    SlotRecord,
    SlotsRecord,
    read_order,
    read_settings,
    read_slots,
    write_slots,
)
from controlplane.files.gateway.access import Limit, read_clients, read_held
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.files.reading import exists
from controlplane.files.writing import write_bytes, write_derived
from controlplane.gateway import slots
from controlplane.gateway.processes import Listeners, say
from controlplane.gateway.security import certificate
from controlplane.gateway.slots import Phase, Slot, SlotTable
from controlplane.render.haproxy import HaproxyStart, SlotLines, render_haproxy

GENERATION = "generation"
"""Key in the checks' map that tells which table a running HAProxy holds; no backend has this name."""
FINGERPRINT = "proc.settings"
"""HAProxy's variable with the fingerprint of the settings that it was started from."""
WITHOUT_SERVERS = "without-servers"
"""In its place: this one is replaced by one that starts with the first servers."""
FORMER = "proc.former"
"""HAProxy's variable with the pid of the one before it that leads to no server."""

_MAXCONN = 8192
_SLOTS = 96
_SLOTS_AN_ENDPOINT = 3
"""One that serves, one it moves to, and one that still drains from the move before."""
_DESCRIPTORS_KEPT = 128
_CHECKS_A_LINE = 3
"""Descriptors that are set aside for a server of `h_i` and its twin of `g_i`."""


def load(paths: GatewayPaths, settings: GatewaySettings) -> tuple[int, SlotTable]:
    """The generation and the table on disk."""
    record = read_slots(paths.slots)
    found = list(SlotTable.empty(record.count or settings.slots, settings.members).slots)
    for used in record.slots:
        phase = Phase.DRAINING if used.draining else Phase.ACTIVE
        found[used.index] = Slot(used.index, phase, used.endpoint, used.route, used.traits)
    return record.generation, SlotTable(settings.members, tuple(found))


def save(paths: GatewayPaths, generation: int, table: SlotTable) -> None:
    """Write the table and both maps.

    The table comes last: a crash before leaves HAProxy's files newer than the table, and the next commit
    restates everything from the table.
    """
    _write_maps(paths, generation, table)
    used = tuple(
        SlotRecord.of(slot.index, slot.phase is Phase.DRAINING, slot.endpoint, slot.route, slot.traits)
        for slot in table.slots
        if slot.endpoint is not None and slot.route is not None
    )
    write_slots(paths.slots, SlotsRecord(generation, len(table.slots), used))


def _write_maps(paths: GatewayPaths, generation: int, table: SlotTable) -> None:
    write_derived(paths.models_map, _map_text(table.model_map()))
    write_derived(paths.gates_map, _map_text(slots.gate_map(table, read_order(paths.order))))
    write_derived(paths.checks_map, _map_text(check_entries(generation, table)))


def config(paths: GatewayPaths, settings: GatewaySettings, listeners: Listeners, log_fd: int) -> str:
    """Return the configuration that HAProxy starts from, and write the files that it names.

    It has the servers of the table on disk, and as many slots as are set.
    """
    generation, present = load(paths, settings)
    table = present.grown(settings.slots)
    if len(table.slots) > len(present.slots):
        save(paths, generation, table)
    else:  # leaves the table to a commit that is under way
        _write_maps(paths, generation, table)
    if settings.protection.certificate and settings.protection.key:
        write_certificate(paths, settings)
    else:
        paths.certificate.unlink(missing_ok=True)
    for path, entries in access_maps(paths, settings).items():
        write_derived(path, _map_text(entries))
    inside = slots.gate_sizes(table, read_order(paths.order))
    lines = [
        SlotLines(slot.index, slot.servers() if slot.phase is Phase.ACTIVE else {}, inside.get(slot.index, 1))
        for slot in table.slots
    ]
    return render_haproxy(settings, paths, _start(paths, settings, listeners, log_fd), lines)


def write_certificate(
    paths: GatewayPaths, settings: GatewaySettings, load: Callable[[bytes], None] = lambda _: None
) -> bool:
    """Renew HAProxy's copy of the certificate; return whether it changed. Without valid files it stays.

    `load` gets a changed one before the copy is renewed, so that one that fails is loaded by the next call.
    Raises InputError where there is no copy yet and the files are not valid, and what `load` raises.
    """
    files = settings.protection
    try:
        content = certificate.combined(Path(files.certificate or ""), Path(files.key or ""))
    except InputError as error:
        if not exists(paths.certificate):
            raise
        say(f"the certificate is not renewed: {error}")
        return False
    if exists(paths.certificate) and paths.certificate.read_bytes() == content:
        return False
    load(content)
    try:
        write_bytes(paths.certificate, content)
        paths.certificate.chmod(0o600)  # its user's only
    except EngineError as error:
        if not exists(paths.certificate):
            raise
        say(f"the copy of the certificate is not renewed: {error}")
        return False
    return True


def access_maps(paths: GatewayPaths, settings: GatewaySettings) -> dict[Path, dict[str, str]]:
    """Return HAProxy's maps of limits, and of clients where they need tokens.

    A map of limits has those of endpoints, or of clients, that have any; a refusal is of `endpoint` or
    `client/endpoint`, until a second; a grant is of `client/endpoint`, which may be `*`.
    """
    held = read_held(paths.limits)
    refusals = held.refusals.items()
    found = {
        paths.endpoint_limits_map: {endpoint: _limits_text(one) for endpoint, one in held.limits.items()},
        paths.refusals_map: {
            f"{who}/{endpoint}" if who else endpoint: str(s) for (endpoint, who), s in refusals
        },
    }
    if settings.protection.tokens:
        clients = read_clients(paths.clients)
        # HAProxy's `hex` has capitals.
        tokens = {c.token_sha256.upper(): c.name for c in clients if c.token_sha256 is not None}
        certificates = {f"cn={c.certificate}": c.name for c in clients if c.certificate is not None}
        found[paths.clients_map] = {**tokens, **certificates}
        found[paths.grants_map] = {f"{c.name}/{endpoint}": "1" for c in clients for endpoint in c.endpoints}
        found[paths.client_limits_map] = {c.name: _limits_text(c.limit) for c in clients if c.limit}
    return found


def _limits_text(limit: Limit) -> str:
    """Return `rate/requests/bytes`; 0 is no limit."""
    return f"{limit.max_rate_rps or 0}/{limit.max_requests or 0}/{limit.max_body_bytes or 0}"


def check_entries(generation: int, table: SlotTable) -> dict[str, str]:
    """The checks' map with its generation."""
    return {GENERATION: str(generation), **table.check_map()}


def settings_of(paths: GatewayPaths) -> GatewaySettings:
    """What the gateway was started with."""
    return read_settings(paths.settings)


def fingerprint(paths: GatewayPaths, settings: GatewaySettings) -> str:
    """Return what tells a HAProxy with these settings from one with others or of another version."""
    start = HaproxyStart(settings.protection.max_connections or 0)
    text = render_haproxy(settings, paths, start, ())
    return f"{settings.slots}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _start(paths: GatewayPaths, settings: GatewaySettings, listeners: Listeners, log_fd: int) -> HaproxyStart:
    """Return the values of one start, sized to this process's limits."""
    most = maxconn(resource.getrlimit(resource.RLIMIT_NOFILE)[1], settings)
    return HaproxyStart(
        http_fd=listeners.http.fileno(),
        grpc_fd=listeners.grpc.fileno(),
        log_fd=log_fd,
        process=f"h{time.time_ns() // 10**6:x}",
        maxconn=most,
        checks=_checks(settings) // 2,
        connections_a_source=min(settings.protection.max_connections or most // 2, most),
        threads=max(1, min(4, len(os.sched_getaffinity(0)) // 2)),
        fingerprint=fingerprint(paths, settings),
    )


def maxconn(descriptor_limit: int, settings: GatewaySettings) -> int:
    """Connections HAProxy may hold: two descriptors each, beside those of health checks and its own."""
    if descriptor_limit == resource.RLIM_INFINITY:
        return _MAXCONN
    return max(16, min(_MAXCONN, (descriptor_limit - _checks(settings) - _DESCRIPTORS_KEPT) // 2))


def _checks(settings: GatewaySettings) -> int:
    return _CHECKS_A_LINE * settings.slots * (settings.members + 1)


def slot_count(endpoints: int, limit: int) -> int:
    """Return the slots for so many endpoints to move at once, that leave connections half of the open files.

    `limit` is that of open files. Raises GatewayError where it allows too few.
    """
    count = max(_SLOTS, _SLOTS_AN_ENDPOINT * endpoints)
    files_a_slot = 2 * _CHECKS_A_LINE * (MOST_SERVERS + 1)
    if limit != resource.RLIM_INFINITY:
        count = max(4, min(count, limit // files_a_slot))
    if count < 2 * endpoints:
        raise GatewayError(
            f"{endpoints} endpoints need {2 * endpoints} slots to move all at once, but {limit} open files "
            f"allow {count}; raise the hard limit (ulimit -Hn) to {2 * endpoints * files_a_slot}"
        )
    return count


def _map_text(entries: Mapping[str, str]) -> str:
    return "".join(f"{key} {value}\n" for key, value in entries.items())
