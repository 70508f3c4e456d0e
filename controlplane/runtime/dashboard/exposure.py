"""What the live page demands of viewers from other hosts."""

from __future__ import annotations

from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Protection
from controlplane.files.fleets import FleetFiles
from controlplane.files.gateway import read_settings
from controlplane.gateway.places import Places
from controlplane.gateway.security.exposure import is_loopback
from controlplane.monitor.page_access import PageAccess


def page_access(files: FleetFiles, host: str) -> PageAccess | None:
    """Return what the gateway demands on its own ports; None for a page on loopback.

    Raises InputError where the page would pass in plain text and the fleet does not accept that.
    """
    if is_loopback(host):
        return None
    places = Places.of(files.gateway)
    protection = read_settings(places.settings).protection if places.settings.exists() else Protection()
    if protection.certificate is None and not protection.plain_text:
        raise InputError(
            f"{host} can be reached from other hosts, and the page would pass in plain text; `ctl apply` the "
            "fleet with --tls-cert and --tls-key, or leave --host out and use `ssh -L`",
            field="--host",
        )
    return PageAccess(protection, places.certificate, places.clients)
