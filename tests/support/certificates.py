"""Certificates for tests, made by openssl."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Signed:
    """A certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates for addresses and for clients."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.certificate, self._key = directory / "ca.pem", directory / "ca.key"
        _openssl(
            *("req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=authority", "-days", "2"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),  # demanded from Python 3.13 on
            *("-keyout", str(self._key), "-out", str(self.certificate)),
        )

    def sign(
        self,
        name: str,
        *,
        days: int = 1,
        into: Signed | None = None,
        addresses: Sequence[str] = ("127.0.0.1",),
        organisation: str | None = None,
    ) -> Signed:
        """A certificate with this common name; with negative `days`, one that has expired."""
        signed = into or Signed(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        request, extensions = self._directory / "request.csr", self._directory / "extensions"
        extensions.write_text("subjectAltName = " + ",".join(f"IP:{address}" for address in addresses))
        subject = f"/CN={name}" if organisation is None else f"/O={organisation}/CN={name}"
        _openssl(
            *("req", "-new", "-nodes", "-newkey", "rsa:2048", "-subj", subject),
            *("-keyout", str(signed.key), "-out", str(request)),
        )
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self._key)),
            *("-CAcreateserial", "-days", str(days), "-extfile", str(extensions)),
            *("-out", str(signed.certificate)),
        )
        return signed


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
