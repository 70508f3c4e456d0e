"""Calls that change every server: refused by default, bounded where a fleet allows them."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gateway_rig as rig
import grpc
import pytest
from background import stopped
from gateway_clients import SERVICE, Target, connected
from tritonclient.grpc import service_pb2

from controlplane.domain.fleet import Route
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes
from controlplane.gateway.facade.fleet_wide.broadcast import ANSWER_S
from controlplane.gateway.haproxy import HaproxyGateway

VERBOSE = b'{"log_verbose_level": 1}'
TRACE = b'{"trace_level": ["TIMESTAMPS"]}'
PATHS = [
    "/v2/systemsharedmemory/status",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/systemsharedmemory/unregister",
    "/v2/cudasharedmemory/region/r/register",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/models/echo/trace/setting",
]
TRICKS = [
    "/v2/models/echo/trace/setting?x",
    "/v2/models/echo/trace/setting#x",
    "/v2/models/echo/trace/setting/",
    "/v2/models/echo//trace/setting",
    "/v2/models/echo/./trace/setting",
    "/v2/models/echo/x/../trace/setting",
    "/v2/models/echo/trace%2Fsetting",
    "/v2/models/echo/versions/1/trace/setting",
    "/v2/models/echo/trace/setting;x",
    "/v2/models/echo/trace/setting%00",
    "/v2/models/echo/trace/setting%20",
    "//v2/models/echo/trace/setting",
    "http://x/v2/models/echo/trace/setting",
    "/v2/models/echo/infer/../../../logging",
    "/v2/models/echo/../../logging",
    "/v2/models/echo/ready#/v2/logging",
    "/v2/models/echo\\trace/setting",
]


@dataclass(frozen=True)
class Rig:
    target: Target
    triton: rig.Triton
    gateway: HaproxyGateway
    places: GatewayPaths

    @property
    def bare(self) -> Target:
        return Target(f"{rig.HOST}:{self.triton.http_port}", f"{rig.HOST}:{self.triton.grpc_port}", Path())

    def settings(self) -> list[bytes]:
        """What clients could have changed, from the server itself."""
        paths = ("/v2/logging", "/v2/trace/setting", "/v2/models/echo/trace/setting")
        return [self.bare.raw("GET", path)[1] for path in (*paths, "/v2/systemsharedmemory/status")]

    def kept(self) -> dict[str, object]:
        file = self.places.broadcasts
        content: dict[str, object] = json.loads(file.read_text()) if file.exists() else {}
        return content


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rig.Triton]:
    with rig.tritons(tmp_path_factory.mktemp("tritons"), one={"echo": "echo"}) as running:
        yield running["one"]


def _rig(directory: Path, triton: rig.Triton, *, allowed: bool) -> Iterator[Rig]:
    with rig.a_gateway(directory, fleet_wide_calls=allowed) as (gateway, ports):
        gateway.commit({"echo": Route((triton.backend,))})
        target = Target(f"{rig.HOST}:{ports.http}", f"{rig.HOST}:{ports.grpc}", directory)
        yield Rig(target, triton, gateway, GatewayPaths.of(directory / "gateway"))


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, triton: rig.Triton) -> Iterator[Rig]:
    yield from _rig(tmp_path_factory.mktemp("closed"), triton, allowed=False)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, triton: rig.Triton) -> Iterator[Rig]:
    yield from _rig(tmp_path_factory.mktemp("opened"), triton, allowed=True)


@pytest.mark.parametrize("path", PATHS)
def test_by_default_http_refuses(closed: Rig, path: str) -> None:
    method = "GET" if path.endswith("status") else "POST"
    status, answer, _ = closed.target.raw(method, path, None if method == "GET" else b"{}")
    assert status == 403
    assert b"fleet_wide_calls: true" in answer


@pytest.mark.parametrize(
    "method",
    [
        "TraceSetting",
        "LogSettings",
        *(
            f"{kind}SharedMemory{verb}"
            for kind in ("System", "Cuda")
            for verb in ("Status", "Register", "Unregister")
        ),
    ],
)
def test_by_default_grpc_refuses(closed: Rig, method: str) -> None:
    with grpc.insecure_channel(closed.target.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(SERVICE + method)(b"", timeout=30)
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("path", TRICKS)
@pytest.mark.parametrize("method", ["POST", "PUT", "GET"])
def test_no_spelling_of_a_path_changes_a_server(closed: Rig, method: str, path: str) -> None:
    before = closed.settings()
    for body in (VERBOSE, TRACE):
        _raw(
            closed.target,
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body,
        )
    assert closed.settings() == before


def test_variants_of_a_query_are_one_entry(opened: Rig) -> None:
    for number in range(50):
        assert opened.target.raw("POST", f"/v2/logging?{number}", VERBOSE)[0] == 200
    assert opened.kept() == {"/v2/logging": {"log_verbose_level": 1}}
    assert opened.target.raw("POST", "/v2/logging", b'{"log_verbose_level": 0}')[0] == 200


def test_a_region_beyond_the_bounds_is_refused_and_registered_nowhere(opened: Rig) -> None:
    before = opened.settings()
    for body in (b'{"key": "/k", "offset": 0, "byte_size": 1, "more": "' + b"x" * 20_000 + b'"}', b"{}"):
        name = "r" if len(body) > 2 else "n" * 129
        path = f"/v2/systemsharedmemory/region/{name}/register"
        assert opened.target.raw("POST", path, body)[0] == 400
    request = service_pb2.SystemSharedMemoryRegisterRequest(name="a/b", key="/k", byte_size=1)
    with grpc.insecure_channel(opened.target.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(SERVICE + "SystemSharedMemoryRegister")(request.SerializeToString(), timeout=30)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert opened.settings() == before


def test_a_broken_file_does_not_stop_the_facade(opened: Rig) -> None:
    opened.places.broadcasts.write_bytes(b"{" * 1000)
    rig.replaced(opened.places, processes.FACADE)
    assert opened.target.raw("GET", "/v2/health/ready")[0] == 200
    assert opened.target.raw("POST", "/v2/logging", b'{"log_verbose_level": 0}')[0] == 200


def test_a_stopped_server_holds_a_fleet_wide_call_up_for_seconds_only(opened: Rig) -> None:
    with stopped(opened.triton.process.pid):
        started = time.monotonic()
        status, _, _ = opened.target.raw("POST", "/v2/logging", VERBOSE)
        waited_s = time.monotonic() - started
    assert status == 503
    # Reading what to put back, the call itself, putting it back; a call without bound waits for its client.
    assert waited_s < 10 * ANSWER_S


def _raw(target: Target, request: bytes) -> bytes:
    with connected(target.http, 30) as connection:
        connection.sendall(request)
        return connection.recv(4096)
