"""Shared-memory regions of one client are not another's."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from gateway_clients import SERVICE, Target, served
from tritonclient.grpc import service_pb2

from controlplane.domain.fleet import AccessConfig
from controlplane.files.gateway.access import Client
from controlplane.gateway.security.registry import ClientRegistry

MEMORY = "/v2/systemsharedmemory"


@dataclass(frozen=True)
class Operator:
    """A client that may make fleet-wide calls."""

    name: str
    token: str
    prefix: str
    target: Target

    def http(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        text = None if body is None else json.dumps(body).encode()
        return self.target.raw(method, path, text, token=self.token)[:2]

    def register(self, name: str, key: str) -> tuple[int, bytes]:
        path = f"{MEMORY}/region/{name}/register"
        return self.http("POST", path, {"key": key, "offset": 0, "byte_size": 4})

    def regions(self) -> set[str]:
        return {one["name"] for one in json.loads(self.http("GET", f"{MEMORY}/status")[1])}

    def infer(self, region: str) -> tuple[int, bytes]:
        where = {"shared_memory_region": region, "shared_memory_byte_size": 4}
        tensor = {"name": "INPUT", "datatype": "FP32", "shape": [1], "parameters": where}
        return self.http("POST", "/v2/models/echo/infer", {"inputs": [tensor]})

    def grpc(self, method: str, message: bytes) -> bytes:
        metadata = [("authorization", f"Bearer {self.token}")]
        with grpc.insecure_channel(self.target.grpc) as channel:
            return bytes(channel.unary_unary(SERVICE + method)(message, timeout=60, metadata=metadata))


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Operator, Operator]]:
    here = tmp_path_factory.mktemp("regions")
    with served(here, {"echo": "echo"}, protection=AccessConfig(tokens=True)) as made:
        registry = ClientRegistry(made.places.state)

        def operator(name: str) -> Operator:
            token = registry.create(Client(name, ("echo",), operator=True))
            (client,) = (one for one in registry.clients() if one.name == name)
            assert token is not None
            assert client.region_prefix is not None
            return Operator(name, token, client.region_prefix, made.target)

        yield operator("shop"), operator("web")


@pytest.fixture
def shared(operators: tuple[Operator, Operator]) -> Iterator[tuple[str, str]]:
    """Name and key of a region of the first operator."""
    shop, _ = operators
    key = f"/shop.{time.monotonic_ns()}"
    region = shm.create_shared_memory_region("r", key, 4)
    try:
        shm.set_shared_memory_region(region, [np.array([7], dtype=np.float32)])
        name = f"{shop.prefix}r"
        assert shop.register(name, key)[0] == 200
        yield name, key
    finally:
        shop.http("POST", f"{MEMORY}/unregister")
        shm.destroy_shared_memory_region(region)


def test_a_client_uses_its_own_region(operators: tuple[Operator, Operator], shared: tuple[str, str]) -> None:
    shop, _ = operators
    status, answer = shop.infer(shared[0])
    assert (status, b"7" in answer) == (200, True)
    assert shop.regions() == {shared[0]}


def test_another_client_neither_sees_nor_ends_nor_replaces_it(
    operators: tuple[Operator, Operator], shared: tuple[str, str]
) -> None:
    shop, web = operators
    name, key = shared
    assert web.regions() == set()
    assert web.http("POST", f"{MEMORY}/unregister")[0] == 200
    for path in (f"{MEMORY}/region/{name}/unregister", f"{MEMORY}/region/{name}/status"):
        assert web.http("POST" if path.endswith("unregister") else "GET", path)[0] == 403
    assert web.register(name, "/web.k")[0] == 403, "its name"
    assert web.register(f"{web.prefix}r", key)[0] == 403, "its memory"
    status, said = web.register("r", key)
    assert (status, web.prefix in json.loads(said)["error"]) == (403, True)
    assert web.infer(f"{web.prefix}r")[0] >= 400, "a name that it can know is no region"
    assert shop.regions() == {name}


def test_the_same_holds_over_grpc(operators: tuple[Operator, Operator], shared: tuple[str, str]) -> None:
    shop, web = operators
    name, key = shared
    listed = service_pb2.SystemSharedMemoryStatusResponse.FromString
    assert set(listed(shop.grpc("SystemSharedMemoryStatus", b"")).regions) == {name}
    assert set(listed(web.grpc("SystemSharedMemoryStatus", b"")).regions) == set()
    unregister = service_pb2.SystemSharedMemoryUnregisterRequest
    register = service_pb2.SystemSharedMemoryRegisterRequest
    for method, message in (
        ("SystemSharedMemoryUnregister", unregister(name=name)),
        ("SystemSharedMemoryRegister", register(name=name, key="/web.k", byte_size=4)),
        ("SystemSharedMemoryRegister", register(name=f"{web.prefix}r", key=key, byte_size=4)),
        ("SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest(name=name)),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            web.grpc(method, message.SerializeToString())
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    web.grpc("SystemSharedMemoryUnregister", b"")
    assert shop.regions() == {name}
    shop.grpc("SystemSharedMemoryUnregister", b"")
    assert shop.regions() == set()
