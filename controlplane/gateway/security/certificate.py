"""What a gateway may listen on, and its certificate.

HAProxy has a copy of the user's files, which follows them without a restart.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.domain.fleet import AccessConfig


def combined(certificate: Path, key: Path) -> bytes:
    """Return a certificate with its chain and key in one text. Raises InputError where they do not fit."""
    import ssl  # every verb that looks at the gateway would wait for it

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
        text = certificate.read_bytes() + b"\n" + key.read_bytes()
    except ssl.SSLError as error:
        raise InputError(
            f"is no certificate in PEM, or {key} is not its key without a password ({error.reason})",
            file=str(certificate),
        ) from None
    except OSError as error:
        file = str(error.filename or certificate)
        raise InputError(f"cannot be read: {error.strerror}", file=file) from None
    # HAProxy's runtime interface takes an empty line for the end.
    return b"\n".join(line for line in text.splitlines() if line.strip()) + b"\n"


def check_exposure(host: str, protection: AccessConfig) -> None:
    """Refuse addresses beyond loopback without TLS, and files that are none. Raises InputError."""
    if protection.certificate is not None and protection.key is not None:
        combined(Path(protection.certificate), Path(protection.key))
    elif not is_loopback(host) and not protection.plain_text:
        raise InputError(
            f"{host} can be reached from other hosts, and requests would pass in plain text; give it "
            "a certificate (serve.tls), or accept it with serve.access.plain_text",
            field="serve.listen.host",
        )
    if protection.client_ca is not None and not Path(protection.client_ca).is_file():
        raise InputError("no such file", file=protection.client_ca)


def is_loopback(host: str) -> bool:
    """Return whether only this host can connect to an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
