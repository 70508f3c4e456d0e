"""Options of a running gateway change under load, and no request is lost."""

import http.client
import ssl
from functools import partial
from pathlib import Path

import gateway_rig as rig
import pytest
from background import until
from certificates import Authority
from gateway_clients import http_call, served

from controlplane.domain.errors import GatewayError, InputError
from controlplane.domain.fleet import AccessConfig
from controlplane.files.gateway.access import Client
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes, startup
from controlplane.gateway.haproxy import HaproxyGateway
from controlplane.gateway.security.registry import ClientRegistry


def status(
    port: int,
    context: ssl.SSLContext | None = None,
    token: str | None = None,
    path: str = "/v2/models/echo/ready",
) -> int:
    return http_call(f"{rig.HOST}:{port}", "GET", path, token=token, context=context)[0]


def _under_load(gateway: HaproxyGateway, ports: rig.Ports, steps: list[AccessConfig]) -> rig.Load:
    load = rig.Load(ports)
    with rig.under_load(partial(load.unary, 60.0)):
        for protection in steps:
            done = len(load.outcomes)
            until(lambda done=done: len(load.outcomes) >= done + 20)  # type: ignore[misc]
            gateway.start(rig.options(ports, protection=protection))
    return load


def test_options_change_on_a_running_gateway_without_a_lost_request(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    signed = authority.sign("gateway")
    files = {"certificate": str(signed.certificate), "key": str(signed.key)}
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with served(tmp_path, {"echo": "echo"}) as made:
        gateway, ports, places = made.gateway, made.ports, made.places
        first = rig.only(places, processes.HAPROXY)

        plain = [AccessConfig(audit=True), AccessConfig(audit=True, max_connections=500)]
        load = _under_load(gateway, ports, plain)
        assert load.failed() == []
        assert processes.find(places, processes.HAPROXY) != (first,)
        until(places.audit.exists)

        gateway.start(rig.options(ports, protection=AccessConfig(tokens=True)))
        token = ClientRegistry(places.state).create(Client("one", ("echo",)))
        assert (status(ports.http), status(ports.http, token=token)) == (401, 200)

        gateway.start(rig.options(ports, protection=AccessConfig(**files, tokens=True)))
        assert (status(ports.http, context), status(ports.http, context, token)) == (401, 200)
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            status(ports.http, token=token)

        gateway.start(rig.options(ports))
        assert status(ports.http) == 200
        assert not places.certificate.exists(), "no key is left behind"
        (facade,) = processes.find(places, processes.FACADE)
        haproxy = rig.only(places, processes.HAPROXY)
        gateway.start(rig.options(ports))
        assert processes.find(places, processes.HAPROXY) == (haproxy,), "nothing changed"
        assert processes.find(places, processes.FACADE) == (facade,)


def test_options_that_cannot_hold_leave_the_gateway_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig.a_gateway(tmp_path) as (gateway, ports):
        places = GatewayPaths.of(tmp_path / "gateway")
        before = processes.find(places, processes.HAPROXY)
        with pytest.raises(InputError, match="cannot be read"):
            gateway.start(rig.options(ports, protection=AccessConfig("/none", "/none")))
        assert processes.find(places, processes.HAPROXY) == before

        # Valid for the checks, and no authority for HAProxy.
        broken = tmp_path / "broken.pem"
        broken.write_text("no authority")
        signed = Authority(tmp_path).sign("gateway")
        protection = AccessConfig(str(signed.certificate), str(signed.key), str(broken))
        monkeypatch.setattr(startup, "_START_DEADLINE_S", 3.0)
        with pytest.raises(GatewayError, match="new settings"):
            gateway.start(rig.options(ports, protection=protection))
        monkeypatch.undo()
        assert status(ports.http, path="/v2/health/live") == 200
        gateway.start(rig.options(ports))
