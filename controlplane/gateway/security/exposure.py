"""What a gateway may listen on."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Protection
from controlplane.gateway.security import certificate


def check(host: str, protection: Protection) -> None:
    """Refuse addresses beyond loopback without TLS, and files that are none. Raises InputError."""
    if (protection.certificate is None) != (protection.key is None):
        raise InputError("a certificate and its key come together", field="--tls-cert, --tls-key")
    if protection.client_ca is not None and protection.certificate is None:
        problem = "clients' certificates need TLS; give --tls-cert and --tls-key"
        raise InputError(problem, field="--tls-client-ca")
    if protection.certificate is not None and protection.key is not None:
        certificate.combined(Path(protection.certificate), Path(protection.key))
    elif not is_loopback(host) and not protection.plain_text:
        raise InputError(
            f"{host} can be reached from other hosts, and requests would pass in plain text; give --tls-cert "
            "and --tls-key, or accept it with --plain-text",
            field="--host",
        )
    if protection.client_ca is not None and not Path(protection.client_ca).is_file():
        raise InputError("no such file", file=protection.client_ca)


def is_loopback(host: str) -> bool:
    """Return whether only this host can connect to an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
