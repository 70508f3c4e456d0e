"""Access to a fleet's pages (metrics, and the live page beyond loopback), as to the gateway's other ports."""

from __future__ import annotations

import contextlib
import ssl
from functools import partial
from pathlib import Path

from aiohttp import web

from controlplane.domain.fleet import AccessConfig
from controlplane.files.gateway.access import operates_with, read_clients
from controlplane.files.reading import Remembered

_SCHEMES = 'Bearer, Basic realm="the token is the password", charset="UTF-8"'
"""A browser asks its user for a name and a password; scrapers send the token itself."""


class PageAccess:
    """TLS with the gateway's certificate, and an operator's credential where the fleet needs tokens.

    `tls` is None in a fleet without a certificate.
    """

    def __init__(self, protection: AccessConfig, certificate: Path, clients: Path) -> None:
        self.tls = _tls(certificate, protection) if protection.certificate else None
        self._needs_operator = protection.tokens
        self._loaded = Remembered(certificate, partial(self._load, certificate))
        self._clients = Remembered(clients, partial(read_clients, clients))

    def renew(self) -> None:
        """Serve a changed certificate on new connections; one that cannot be read changes nothing."""
        with contextlib.suppress(OSError):
            self._loaded.get()

    def refusal(self, request: web.Request) -> web.Response | None:
        """Return the answer to a client that may not see the page; None for one that may."""
        if not self._needs_operator:
            return None
        authorization = request.headers.get("Authorization", "")
        shown = request.get_extra_info("peercert") or {}  # a certificate that TLS has verified
        names = (v for names in shown.get("subject", ()) for k, v in names if k == "commonName")
        if operates_with(authorization, next(names, None), self._clients.get()):
            return None
        return web.Response(status=401, headers={"WWW-Authenticate": _SCHEMES})

    def _load(self, certificate: Path) -> None:
        if self.tls is not None:
            self.tls.load_cert_chain(certificate)


def _tls(certificate: Path, protection: AccessConfig) -> ssl.SSLContext:
    """Return what HAProxy demands of clients on the other ports."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if protection.client_ca:
        context.load_verify_locations(protection.client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL if protection.tokens else ssl.CERT_REQUIRED
    return context
