"""A gateway on a network: TLS, tokens and clients' certificates, and calls of it."""

import contextlib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import gateway_rig as rig
import grpc
from certificates import Authority, Signed
from gateway_clients import SERVICE, http_call, served

from controlplane.domain.fleet import AccessConfig
from controlplane.files.gateway.access import Client
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway.haproxy import HaproxyGateway
from controlplane.gateway.security.registry import ClientRegistry

INFER = "/v2/models/first/infer"
Code = grpc.StatusCode


@dataclass(frozen=True)
class Network:
    ports: rig.Ports
    gateway: HaproxyGateway
    places: GatewayPaths
    authority: Authority
    server: Signed
    clients: ClientRegistry
    triton: rig.Triton
    protection: AccessConfig

    def context(self, client: Signed | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        return context

    def http(
        self,
        method: str,
        path: str,
        token: str | None = None,
        *,
        client: Signed | None = None,
        port: int | None = None,
        **how: Any,
    ) -> tuple[int, bytes, dict[str, str]]:
        address = f"{rig.HOST}:{port or self.ports.http}"
        return http_call(address, method, path, token=token, context=self.context(client), **how)

    def channel(self, client: Signed | None = None) -> grpc.Channel:
        key, chain = (client.key.read_bytes(), client.certificate.read_bytes()) if client else (None, None)
        credentials = grpc.ssl_channel_credentials(self.authority.certificate.read_bytes(), key, chain)
        return grpc.secure_channel(f"{rig.HOST}:{self.ports.grpc}", credentials)

    def refuses(self, code: Code, method: str, message: bytes, token: str | None = None) -> bool:
        """Whether a call ends so. HAProxy may pass on the reset alone with which the facade ends a stream."""
        found = self.grpc(method, message, token)
        by_facade = method == "ModelStreamInfer" and code is Code.PERMISSION_DENIED
        return found is code or (by_facade and found is Code.CANCELLED)

    def grpc(self, method: str, message: bytes, token: str | None = None, **how: Any) -> Code:
        """The status of one call over a new connection."""
        with self.channel() as channel:
            return status_of(channel, method, message, token, **how)


def status_of(channel: grpc.Channel, method: str, message: bytes, token: str | None, **how: Any) -> Code:
    """The status of one call; of a stream, of its first message."""
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    try:
        if method == "ModelStreamInfer":
            next(channel.stream_stream(SERVICE + method)(iter([message]), timeout=60, metadata=metadata))
        else:
            channel.unary_unary(SERVICE + method)(message, timeout=60, metadata=metadata, **how)
    except grpc.RpcError as refusal:
        return cast(grpc.Call, refusal).code()
    return Code.OK


@contextlib.contextmanager
def a_network(here: Path) -> Iterator[Network]:
    authority = Authority(here)
    server = authority.sign("gateway")
    protection = AccessConfig(
        str(server.certificate), str(server.key), str(authority.certificate), tokens=True, audit=True
    )
    models = {"first": "echo", "second": "echo", "slow": "slow"}
    with served(here, models, protection=protection) as made:
        registry = ClientRegistry(made.places.state)
        yield Network(
            *(made.ports, made.gateway, made.places, authority, server, registry, made.triton, protection)
        )


@contextlib.contextmanager
def created(network: Network, *clients: Client) -> Iterator[str]:
    """Clients that are revoked at the end; yields the last one's token, empty for one with a certificate."""
    tokens = [network.clients.create(client) for client in clients]
    try:
        yield tokens[-1] or ""
    finally:
        for name in {c.name for c in clients} & {c.name for c in network.clients.clients()}:
            network.clients.revoke(name)
