"""The gateway's certificate: a copy of the user's files, which follows them without a restart of HAProxy."""

from __future__ import annotations

import os
from pathlib import Path

from controlplane.domain.errors import GatewayError, InputError
from controlplane.files.writing import write_bytes
from controlplane.gateway.runtime_socket import RuntimeSocket


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


def write(copy: Path, content: bytes) -> None:
    """Replace HAProxy's copy, readable by its user only."""
    write_bytes(copy, content)
    os.chmod(copy, 0o600)


def load(runtime: RuntimeSocket, copy: Path, content: bytes) -> None:
    """Have the running HAProxy serve this in place of the copy, on new connections.

    Raises GatewayError, Unreachable.
    """
    said = runtime.ask(f"set ssl cert {copy} <<\n{content.decode()}")
    if "transaction created" not in said.lower() and "transaction updated" not in said.lower():
        raise GatewayError(f"HAProxy refused the certificate {copy}: {said.strip()}")
    said = runtime.ask(f"commit ssl cert {copy}")
    if "success" not in said.lower():
        raise GatewayError(f"HAProxy refused the certificate {copy}: {said.strip()}")
