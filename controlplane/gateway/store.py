"""The slot table on disk, and every text that HAProxy starts from."""

from __future__ import annotations

import hashlib
import os
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from controlplane.domain.errors import EngineError, InputError
from controlplane.files.clients import read_clients
from controlplane.files.gateway import (
    GatewaySettings,
    SlotRecord,
    SlotsRecord,
    read_order,
    read_settings,
    read_slots,
    write_slots,
)
from controlplane.files.limits import read_limits, read_refusals
from controlplane.files.writing import write_derived
from controlplane.gateway import gates
from controlplane.gateway.listeners import Listeners
from controlplane.gateway.places import Places
from controlplane.gateway.processes import say
from controlplane.gateway.security import access, certificate
from controlplane.gateway.slots import BACKUP, Phase, Slot, SlotTable
from controlplane.render.haproxy import REFUSALS_SCRIPT, HaproxyFrame, ServerLine, SlotLines, render_haproxy

GENERATION = "generation"
"""Key in the checks' map that tells which table a running HAProxy holds; no backend has this name."""
FINGERPRINT = "proc.settings"
"""HAProxy's variable with the fingerprint of the settings that it was started from."""

_MAXCONN = 8192
_SLOTS = 96
_SLOTS_AN_ENDPOINT = 3
"""One that serves, one it moves to, and one that still drains from the move before."""
_DESCRIPTORS_KEPT = 128
_CHECKS_A_LINE = 3
"""Descriptors that HAProxy sets aside for a server line of `h_i` and its twin of `g_i`."""


def load(places: Places, settings: GatewaySettings) -> tuple[int, SlotTable]:
    """The generation and the table on disk."""
    record = read_slots(places.slots)
    slots = list(SlotTable.empty(record.count or settings.slots, settings.members).slots)
    for used in record.slots:
        phase = Phase.DRAINING if used.draining else Phase.ACTIVE
        slots[used.index] = Slot(used.index, phase, used.endpoint, used.route, used.traits)
    return record.generation, SlotTable(settings.members, tuple(slots))


def save(places: Places, generation: int, table: SlotTable) -> None:
    """Write the table and both maps.

    The table comes last: a crash before leaves HAProxy's files newer than the table, and the next commit
    restates everything from the table.
    """
    _write_maps(places, generation, table)
    used = tuple(
        SlotRecord.of(slot.index, slot.phase is Phase.DRAINING, slot.endpoint, slot.route, slot.traits)
        for slot in table.slots
        if slot.endpoint is not None and slot.route is not None
    )
    write_slots(places.slots, SlotsRecord(generation, len(table.slots), used))


def _write_maps(places: Places, generation: int, table: SlotTable) -> None:
    write_derived(places.models_map, _map_text(table.model_map()))
    write_derived(places.gates_map, _map_text(gates.gate_map(table, read_order(places.order))))
    write_derived(places.checks_map, _map_text(check_entries(generation, table)))


def config(places: Places, settings: GatewaySettings, listeners: Listeners, log_fd: int) -> str:
    """Return the configuration that HAProxy starts from, and write the files that it names.

    It has the servers of the table on disk, and as many slots as are set.
    """
    generation, present = load(places, settings)
    table = present.grown(settings.slots)
    if len(table.slots) > len(present.slots):
        save(places, generation, table)
    else:  # leaves the table to a commit that is under way
        _write_maps(places, generation, table)
    if settings.protection.certificate and settings.protection.key:
        write_certificate(places, settings)
    else:
        places.certificate.unlink(missing_ok=True)
    for path, entries in access_maps(places, settings).items():
        write_derived(path, _map_text(entries))
    inside = gates.inside(table, read_order(places.order))
    lines = [_lines(table, slot, inside.get(slot.index, 1)) for slot in table.slots]
    return render_haproxy(_running_frame(places, settings, listeners, log_fd), lines)


def write_certificate(
    places: Places, settings: GatewaySettings, load: Callable[[bytes], None] = lambda _: None
) -> bool:
    """Renew HAProxy's copy of the certificate; return whether it changed. Without valid files it stays.

    `load` gets a changed one before the copy is renewed, so that one that fails is loaded by the next call.
    Raises InputError where there is no copy yet and the files are not valid, and what `load` raises.
    """
    files = settings.protection
    try:
        content = certificate.combined(Path(files.certificate or ""), Path(files.key or ""))
    except InputError as error:
        if not places.certificate.exists():
            raise
        say(f"the certificate is not renewed: {error}")
        return False
    if places.certificate.exists() and places.certificate.read_bytes() == content:
        return False
    load(content)
    try:
        certificate.write(places.certificate, content)
    except EngineError as error:
        if not places.certificate.exists():
            raise
        say(f"the copy of the certificate is not renewed: {error}")
        return False
    return True


def access_maps(places: Places, settings: GatewaySettings) -> dict[Path, dict[str, str]]:
    """Return HAProxy's maps of limits, and of clients where they need tokens."""
    found = {
        places.access_map("endpoint_limits"): access.endpoint_limits_map(read_limits(places.limits)),
        places.access_map("refusals"): access.refusals_map(read_refusals(places.refusals)),
    }
    if settings.protection.tokens:
        clients = read_clients(places.clients)
        found[places.access_map("clients")] = access.clients_map(clients)
        found[places.access_map("grants")] = access.grants_map(clients)
        found[places.access_map("client_limits")] = access.client_limits_map(clients)
    return found


def check_entries(generation: int, table: SlotTable) -> dict[str, str]:
    """The checks' map with its generation."""
    return {GENERATION: str(generation), **table.check_map()}


def settings_of(places: Places) -> GatewaySettings:
    """What the gateway was started with."""
    return read_settings(places.settings)


def fingerprint(places: Places, settings: GatewaySettings) -> str:
    """Return what tells a HAProxy with these settings from one with others or of another version."""
    text = render_haproxy(_frame(places, settings), ())
    return f"{settings.slots}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _frame(places: Places, settings: GatewaySettings) -> HaproxyFrame:
    """The part of the configuration that no commit changes, without what differs between two starts."""
    protection = settings.protection
    return HaproxyFrame(
        http_fd=-1,
        grpc_fd=-1,
        runtime_socket=str(places.runtime_socket),
        exporter_socket=str(places.exporter_socket),
        facade_http_socket=str(places.facade_http_socket),
        facade_grpc_socket=str(places.facade_grpc_socket),
        refusals_script=str(REFUSALS_SCRIPT),
        models_map=str(places.models_map),
        checks_map=str(places.checks_map),
        endpoint_limits_map=str(places.access_map("endpoint_limits")),
        refusals_map=str(places.access_map("refusals")),
        log_fd=-1,
        process="",
        maxconn=0,
        connections_a_source=protection.max_connections or 0,
        compress_answers=settings.compress_answers,
        certificate=str(places.certificate) if protection.certificate else None,
        client_ca=protection.client_ca,
        clients_map=str(places.access_map("clients")) if protection.tokens else None,
        grants_map=str(places.access_map("grants")) if protection.tokens else None,
        client_limits_map=str(places.access_map("client_limits")) if protection.tokens else None,
        audit=protection.audit,
        traced=bool(settings.trace_endpoint),
        gates_map=str(places.gates_map) if settings.late_binding else None,
        gate_socket=str(places.gate_socket),
        threads=0,
    )


def _running_frame(
    places: Places, settings: GatewaySettings, listeners: Listeners, log_fd: int
) -> HaproxyFrame:
    """The same for one start, sized to this process's limits."""
    most = maxconn(resource.getrlimit(resource.RLIMIT_NOFILE)[1], settings)
    return replace(
        _frame(places, settings),
        http_fd=listeners.http.fileno(),
        grpc_fd=listeners.grpc.fileno(),
        log_fd=log_fd,
        process=f"h{time.time_ns() // 10**6:x}",
        maxconn=most,
        connections_a_source=min(settings.protection.max_connections or most // 2, most),
        threads=max(1, min(4, len(os.sched_getaffinity(0)) // 2)),
        fingerprint=fingerprint(places, settings),
    )


def maxconn(descriptor_limit: int, settings: GatewaySettings) -> int:
    """Connections HAProxy may hold: two descriptors each, beside those of health checks and its own."""
    if descriptor_limit == resource.RLIM_INFINITY:
        return _MAXCONN
    checks = _CHECKS_A_LINE * settings.slots * (settings.members + 1)
    return max(16, min(_MAXCONN, (descriptor_limit - checks - _DESCRIPTORS_KEPT) // 2))


def slot_count(descriptor_limit: int, members: int, endpoints: int) -> int:
    """Slots for so many endpoints to move at once, that leave half of the descriptors to connections."""
    wanted = max(_SLOTS, _SLOTS_AN_ENDPOINT * endpoints)
    if descriptor_limit == resource.RLIM_INFINITY:
        return wanted
    return max(4, min(wanted, descriptor_limit // 2 // (_CHECKS_A_LINE * (members + 1))))


def descriptors(slots: int, members: int) -> int:
    """Return the limit of open files that allows so many slots."""
    return 2 * slots * _CHECKS_A_LINE * (members + 1)


def _lines(table: SlotTable, slot: Slot, inside: int) -> SlotLines:
    active = slot.servers() if slot.phase is Phase.ACTIVE else {}
    lines = []
    for name in table.lines():
        backend = active.get(name)
        backup = name == BACKUP
        if backend is None:
            lines.append(ServerLine(name, backup=backup))
        else:
            lines.append(
                ServerLine(name, backend.host, backend.http_port, backend.grpc_port, backup, enabled=True)
            )
    return SlotLines(slot.index, tuple(lines), inside)


def _map_text(entries: Mapping[str, str]) -> str:
    return "".join(f"{key} {value}\n" for key, value in entries.items())
