"""The clients of one gateway: created, listed and revoked while it runs."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from controlplane.domain.errors import GatewayError, InputError
from controlplane.files.clients import Client, check, hashed, read_clients, write_clients
from controlplane.gateway import processes, store
from controlplane.gateway.places import Places
from controlplane.gateway.runtime_socket import RuntimeSocket, Unreachable

_TOKEN_BYTES = 32
_LOCK_DEADLINE_S = 30.0
_ANSWER_DEADLINE_S = 20.0
_POLL_S = 0.1


class ClientRegistry:
    """Changes take effect at once, on open connections too. HAProxy reads the same file at its start."""

    def __init__(self, state_dir: Path) -> None:
        self._places = Places.of(state_dir)

    def clients(self) -> tuple[Client, ...]:
        """Return all clients."""
        return read_clients(self._places.clients)

    def create(self, client: Client) -> str | None:
        """Add a client; return its new token, which is kept nowhere, or None for one with a certificate.

        Raises InputError where its name or certificate is in use or cannot be one, GatewayError where HAProxy
        runs and does not answer.
        """
        check(client)
        token = None if client.certificate else f"trisect_{secrets.token_urlsafe(_TOKEN_BYTES)}"
        added = replace(client, token_sha256=None if token is None else hashed(token))
        with self._locked():
            present = self.clients()
            if any(one.name == client.name for one in present):
                raise InputError(f"{client.name!r} is a client already; revoke it first", field="NAME")
            if client.certificate and any(one.certificate == client.certificate for one in present):
                raise InputError(f"{client.certificate!r} is another client's", field="--certificate")
            self._write((*present, added))
        return token

    def revoke(self, name: str) -> None:
        """Remove a client. Raises InputError where there is none of this name.

        Raises GatewayError where HAProxy runs and does not answer: it may still accept the client.
        """
        with self._locked():
            present = self.clients()
            if all(one.name != name for one in present):
                known = ", ".join(one.name for one in present) or "none"
                raise InputError(f"no client is called {name!r}; there are: {known}", field="NAME")
            self._write(tuple(one for one in present if one.name != name))

    def _locked(self) -> FileLock:
        self._places.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        return FileLock(self._places.lock, timeout=_LOCK_DEADLINE_S)

    def _write(self, clients: tuple[Client, ...]) -> None:
        write_clients(self._places.clients, clients)
        if self._places.settings.exists() and store.settings_of(self._places).protection.tokens:
            self._send()

    def _send(self) -> None:
        """Bring HAProxy to the file, or return where none runs: the next one starts with it."""
        runtime = RuntimeSocket(self._places.runtime_socket)
        deadline = time.monotonic() + _ANSWER_DEADLINE_S
        while True:
            try:
                for path, entries in store.client_maps(self._places).items():
                    runtime.replace_map(path, entries)
                return
            except Unreachable as error:
                running = processes.find(self._places, processes.HAPROXY)
                if not running:
                    return
                if time.monotonic() > deadline:
                    raise GatewayError(
                        f"the change is written, but HAProxy (process {running[0]}) does not answer and goes "
                        "on with the clients before; end it, and the one started instead has the change"
                    ) from error
            time.sleep(_POLL_S)
