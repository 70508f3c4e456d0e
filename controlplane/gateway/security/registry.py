"""The clients of one gateway and the limits of its endpoints, changed while it runs."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from controlplane.domain.errors import GatewayError, InputError
from controlplane.files.gateway.access import (
    Client,
    Held,
    Limit,
    check_client,
    check_limit,
    hashed,
    read_clients,
    read_held,
    remembered,
    write_clients,
    write_held,
)
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.files.reading import exists
from controlplane.files.waiting import locked, wait_until
from controlplane.gateway import processes, store
from controlplane.gateway.running import RuntimeSocket, Unreachable

_TOKEN_BYTES = 32
_PREFIX_BYTES = 10
_ANSWER_DEADLINE_S = 20.0
_POLL_S = 0.1


class ClientRegistry:
    """Changes take effect at once, on open connections too. HAProxy reads the same file at its start."""

    def __init__(self, state_dir: Path) -> None:
        self._paths = GatewayPaths.of(state_dir)

    def clients(self) -> tuple[Client, ...]:
        """Return all clients."""
        return read_clients(self._paths.clients)

    def create(self, client: Client) -> str | None:
        """Add a client; return its new token, which is kept nowhere, or None for one with a certificate.

        Raises InputError where its name or certificate is in use or cannot be one, GatewayError where HAProxy
        runs and does not answer.
        """
        check_client(client)
        token = None if client.certificate else f"trisect_{secrets.token_urlsafe(_TOKEN_BYTES)}"
        prefix = f"{client.name}.{secrets.token_hex(_PREFIX_BYTES)}." if client.operator else None
        added = replace(client, token_sha256=None if token is None else hashed(token), region_prefix=prefix)
        with _changing(self._paths):
            present = self.clients()
            if any(one.name == client.name for one in present):
                raise InputError(f"{client.name!r} is a client already; revoke it first", field="NAME")
            if client.certificate and any(one.certificate == client.certificate for one in present):
                raise InputError(f"{client.certificate!r} is another client's", field="--certificate")
            write_clients(self._paths.clients, (*present, added))
        return token

    def revoke(self, name: str) -> None:
        """Remove a client. Raises InputError where there is none of this name.

        Raises GatewayError where HAProxy runs and does not answer: it may still accept the client.
        """
        with _changing(self._paths):
            present = self.clients()
            if all(one.name != name for one in present):
                known = ", ".join(one.name for one in present) or "none"
                raise InputError(f"no client is called {name!r}; there are: {known}", field="NAME")
            write_clients(self._paths.clients, (one for one in present if one.name != name))


class LimitRegistry:
    """The limits of endpoints. Changes take effect at once; HAProxy and the facade read the same file."""

    def __init__(self, state_dir: Path) -> None:
        self._paths = GatewayPaths.of(state_dir)

    def held(self) -> Held:
        """Return the limits by endpoint, and what is refused now or was of late."""
        held, now_s = read_held(self._paths.limits), time.time()
        return replace(held, refusals={w: at for w, at in held.refusals.items() if remembered(at, now_s)})

    def set(self, endpoint: str, limit: Limit) -> None:
        """Give an endpoint these limits in place of those it has.

        Raises InputError where they limit nothing, GatewayError where HAProxy runs and does not answer.
        """
        check_limit(endpoint, limit)
        with _changing(self._paths):
            held = self.held()
            write_held(self._paths.limits, replace(held, limits={**held.limits, endpoint: limit}))

    def refuse(self, endpoint: str, client: str, until_s: float) -> None:
        """Refuse inferences of an endpoint, from one client or (empty) from all, until then. As `set`."""
        with _changing(self._paths):
            held = self.held()
            refusals = {**held.refusals, (endpoint, client): math.ceil(until_s)}
            write_held(self._paths.limits, replace(held, refusals=refusals))

    def remove(self, endpoint: str) -> None:
        """Remove an endpoint's limits and refusals. Raises InputError where it has none, and GatewayError."""
        with _changing(self._paths):
            held = self.held()
            kept = Held(
                {name: limit for name, limit in held.limits.items() if name != endpoint},
                {who: at for who, at in held.refusals.items() if who[0] != endpoint},
            )
            if kept == held:
                known = (
                    ", ".join(sorted({*held.limits, *(refused for refused, _ in held.refusals)})) or "none"
                )
                raise InputError(f"{endpoint!r} has no limits; with limits: {known}", field="ENDPOINT")
            write_held(self._paths.limits, kept)


@contextlib.contextmanager
def _changing(paths: GatewayPaths) -> Iterator[None]:
    """Hold the lock of the files, and bring HAProxy to them at the end.

    Where none runs, the next one starts with them.
    """
    runtime = RuntimeSocket(paths.runtime_socket)

    def sent() -> bool:
        try:
            for path, entries in store.access_maps(paths, store.settings_of(paths)).items():
                runtime.replace_map(path, entries)
        except Unreachable:
            return not processes.find(paths, processes.HAPROXY)
        return True

    paths.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(paths.lock):
        yield
        if exists(paths.settings) and not wait_until(sent, deadline_s=_ANSWER_DEADLINE_S, interval_s=_POLL_S):
            running = ", ".join(map(str, processes.find(paths, processes.HAPROXY)))
            raise GatewayError(
                f"the change is written, but HAProxy (process {running}) does not answer and goes on "
                "with what it had; end it, and the one started instead has the change"
            )
