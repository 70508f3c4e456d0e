"""The live page beyond loopback: TLS with the gateway's certificate, and an operator's credential."""

import asyncio
import base64
import http.client
import os
import signal
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from build import gateway_settings
from certificates import Authority
from host_ports import free_ports

from controlplane.domain.errors import InputError
from controlplane.domain.fleet import AccessConfig
from controlplane.domain.observation import BatchStatistics
from controlplane.files.fleets import FleetFiles
from controlplane.files.gateway import write_settings
from controlplane.files.gateway.access import Client, hashed, write_clients
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway.security import certificate
from controlplane.runtime.dashboard import Listening, busy_of, page_access, serve
from controlplane.runtime.fleet.history import Minute

TOKEN = "trisect_operator"
OTHER = "trisect_other"


@pytest.fixture
def files(tmp_path: Path) -> FleetFiles:
    return FleetFiles(tmp_path, "shop")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def gateway(files: FleetFiles, protection: AccessConfig) -> GatewayPaths:
    """The files of a gateway with this protection."""
    places = GatewayPaths.of(files.gateway)
    places.make()
    fields = AccessConfig(
        certificate=protection.certificate, key=protection.key, tokens=True, plain_text=protection.plain_text
    )
    write_settings(places.settings, gateway_settings(protection=fields))
    if protection.certificate and protection.key:
        pem = certificate.combined(Path(protection.certificate), Path(protection.key))
        places.certificate.write_bytes(pem)
    operator = Client("op", (), token_sha256=hashed(TOKEN), operator=True)
    write_clients(
        places.clients,
        [operator, replace(operator, name="other", token_sha256=hashed(OTHER), operator=False)],
    )
    return places


def seen(listening: Listening, view: Callable[[], object]) -> object:
    """What a viewer sees of the served page."""
    found: list[object] = []

    async def run() -> None:
        def ready(_: str) -> None:
            asyncio.get_running_loop().run_in_executor(None, look)

        def look() -> None:
            try:
                found.append(view())
            except (OSError, http.client.HTTPException) as error:
                found.append(error)
            os.kill(os.getpid(), signal.SIGTERM)

        await serve("shop", lambda: {"troubles": []}, listening, ready)

    asyncio.run(run())
    return found[0]


def test_beyond_loopback_the_page_has_the_gateways_certificate_and_is_for_operators(
    files: FleetFiles, authority: Authority
) -> None:
    signed = authority.sign("gateway")
    places = gateway(files, AccessConfig(str(signed.certificate), str(signed.key)))
    (port,) = free_ports(1)
    listening = Listening("127.0.0.1", port, page_access(files, "0.0.0.0"))
    assert listening.address == f"https://127.0.0.1:{port}/"

    def status(authorization: str | None) -> int:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
        try:
            connection.request("GET", "/", headers={"Authorization": authorization} if authorization else {})
            return connection.getresponse().status
        finally:
            connection.close()

    def basic(token: str) -> str:
        return "Basic " + base64.b64encode(f"me:{token}".encode()).decode()

    given = [None, "Bearer wrong", "Basic ???", basic(OTHER), f"Bearer {TOKEN}", basic(TOKEN)]
    assert seen(listening, lambda: [status(one) for one in given]) == [401, 401, 401, 401, 200, 200]
    assert places.certificate.exists()


def test_the_page_gives_no_plain_text_beyond_loopback(files: FleetFiles, authority: Authority) -> None:
    signed = authority.sign("gateway")
    gateway(files, AccessConfig(str(signed.certificate), str(signed.key)))
    (port,) = free_ports(1)

    def plainly() -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/", headers={"Authorization": f"Bearer {TOKEN}"})
        return connection.getresponse().status

    listening = Listening("127.0.0.1", port, page_access(files, "0.0.0.0"))
    assert isinstance(seen(listening, plainly), OSError | http.client.HTTPException)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_beyond_loopback_without_a_certificate_is_refused(files: FleetFiles, host: str) -> None:
    with pytest.raises(InputError, match="in plain text; give the fleet a certificate"):
        page_access(files, host)
    gateway(files, AccessConfig())
    with pytest.raises(InputError, match="--host"):
        page_access(files, host)


def test_a_fleet_that_accepts_plain_text_has_its_page_in_plain_text(files: FleetFiles) -> None:
    gateway(files, AccessConfig(plain_text=True))
    access = page_access(files, "0.0.0.0")
    assert access is not None
    assert access.tls is None


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_on_loopback_nothing_is_demanded(files: FleetFiles, host: str) -> None:
    assert page_access(files, host) is None


def minute(partition: str, seconds: float, batches: dict[int, BatchStatistics] | None) -> Minute:
    return Minute(0.0, seconds, partition, "m", 50.0, 10, 0, 5.0, batches)


def test_the_measured_utilisation_is_the_time_of_executions_of_the_counted_time() -> None:
    whole_s = 10**9
    found = busy_of(
        [
            minute("one", 60.0, {1: BatchStatistics(9, whole_s, 28 * whole_s, whole_s)}),
            minute(
                "one",
                60.0,
                {2: BatchStatistics(9, 0, 30 * whole_s, 0), 4: BatchStatistics(9, 0, 36 * whole_s, 0)},
            ),
            minute("one", 60.0, None),
            minute("two", 60.0, None),
            minute("idle", 60.0, {}),
        ]
    )
    assert found == {("one", "m"): pytest.approx(0.8), ("idle", "m"): 0.0}
