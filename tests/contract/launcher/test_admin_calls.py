"""Calls that change a server are refused to every process that can reach it."""

import base64
import dataclasses
import json
from pathlib import Path

import pytest
import raw_http2
from direct import call
from launcher_rig import MODEL, Fleet, infer
from tritonclient.grpc import service_pb2

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import RELOAD_HEADER, Server
from controlplane.sockets import connect
from controlplane.triton import client as triton
from controlplane.triton.own import prove

VERBOSE = service_pb2.LogSettingsRequest()
VERBOSE.settings["log_verbose_level"].uint32_param = 1

OVER_HTTP = [
    ("POST", "/v2/repository/index", ""),
    ("POST", "/v2/repository/models/spin/unload", "{}"),
    ("POST", "/v2/logging", '{"log_verbose_level": 1}'),
    ("POST", "/v2/trace/setting", '{"trace_level": ["TIMESTAMPS"]}'),
    ("POST", "/v2/models/spin/trace/setting", '{"trace_level": ["TIMESTAMPS"]}'),
    ("POST", "/v2/systemsharedmemory/region/r/register", '{"key": "/x", "offset": 0, "byte_size": 8}'),
    ("GET", "/v2/systemsharedmemory/status", ""),
]
OVER_GRPC = [
    ("RepositoryIndex", service_pb2.RepositoryIndexRequest()),
    ("RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest(model_name="spin")),
    ("RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name="spin")),
    ("LogSettings", VERBOSE),
    ("TraceSetting", service_pb2.TraceSettingRequest()),
    ("SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest()),
]


def keys(line: list[str]) -> list[tuple[str, str]]:
    """What a server's argument vector, which every user of a host can read, says of its locks."""
    restricted = [a for a in line if "-restricted-" in a]
    assert restricted
    pairs = (a.split("=", 1)[1].split(":", 1)[1].split("=", 1) for a in restricted)
    return sorted({(name, value) for name, value in pairs})


def http_status(server: Server, method: str, path: str, body: str, header: str = "") -> int:
    """The status of a request with this very header line."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", "Connection: close"]
    text = "\r\n".join([*lines, *([header] if header else []), "", body])
    with connect(server.host, server.http_port, 10.0) as connection:
        connection.sendall(text.encode("latin-1"))
        first = connection.makefile("rb").readline()
    # An end without an answer refuses as well.
    return int(first.split()[1]) if first else 0


def grpc_answer(server: Server, method: str, message: bytes, headers: dict[str, str]) -> bytes | None:
    address = f"{server.host}:{server.grpc_port}"
    return raw_http2.call(address, method, raw_http2.frame_of(message), headers, timeout_s=10)


def attack(server: Server, proof: Path, header: dict[str, str] | None = None) -> int:
    """Load a model whose code the request carries, which would write `proof`; the answer's status."""
    code = MODEL.replace("        pass\n", f"        open({str(proof)!r}, 'w').close()\n", 1)
    config = {
        "backend": "python",
        "max_batch_size": 0,
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [2]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [2]}],
        "instance_group": [{"kind": "KIND_CPU", "count": 1}],
    }
    sent = {"config": json.dumps(config), "file:1/model.py": base64.b64encode(code.encode()).decode()}
    body = json.dumps({"parameters": sent}).encode()
    return call(server, "POST", "/v2/repository/models/evil/load", body, header)[0]


def test_no_request_opens_a_locked_call_though_its_lock_can_be_read(fleet: Fleet, tmp_path: Path) -> None:
    spec = fleet.spec()
    server = fleet.start(spec)
    proof = tmp_path / "proof"
    assert attack(server, proof) in (400, 403)
    ((name, value),) = keys(fleet.launcher.command(spec).replace("'", "").replace(" \\\n", "").split())
    assert server.reload_key is None
    head, _, tail = name.partition(":")
    spellings = [
        "",
        f"{name}: {value}",
        f"{name.upper()}: {value}",
        f"{head}: {tail}: {value}",
        f"{head}:\r\n {tail}: {value}",
        f"{head}\\:{tail}: {value}",
        f"{head}%3a{tail}: {value}",
        f"{head}\0:{tail}: {value}",
        f"x: y\r\n {name}: {value}",
        f"{name.replace(':', chr(0))}: {value}",
    ]
    opened = [
        (path, spelling, status)
        for method, path, body in OVER_HTTP
        for spelling in spellings
        if (status := http_status(server, method, path, body, spelling)) == 200
    ]
    assert opened == []
    prefix = "triton-grpc-protocol-"
    for sent in ({}, {prefix + name: value}, {prefix + name.upper(): value}, {prefix + head: value}):
        for method, message in OVER_GRPC:
            assert grpc_answer(server, method, message.SerializeToString(), sent) is None, (method, sent)
    assert infer(server) == [0.0, 0.0]
    assert not proof.exists()


def test_a_server_that_reloads_does_so_for_its_key_only(fleet: Fleet, tmp_path: Path) -> None:
    spec = dataclasses.replace(fleet.spec(), reloads=True)
    server = fleet.start(spec)
    proof = tmp_path / "proof"
    assert server.reload_key
    assert attack(server, proof) == 403
    assert attack(server, proof, {RELOAD_HEADER: "RANDOM"}) == 403
    for method, message in OVER_GRPC:
        sent = {f"triton-grpc-protocol-{RELOAD_HEADER}": server.reload_key}
        assert grpc_answer(server, method, message.SerializeToString(), sent) is None, method
    assert not proof.exists()
    (found,) = fleet.engine.launcher().servers(fleet.name)
    triton.unload(found, "spin", deadline_s=30)
    with pytest.raises(EngineError):
        prove(found, "spin", lambda counters: None, deadline_s=30)
    triton.load(found, "spin", deadline_s=60)
    assert infer(server) == [0.0, 0.0]
    assert server.reload_key not in fleet.launcher.command(spec)
    assert server.reload_key not in repr(server)


def test_a_fleet_with_fleet_wide_calls_still_locks_its_models(fleet: Fleet, tmp_path: Path) -> None:
    server = fleet.start(dataclasses.replace(fleet.spec(), fleet_wide_calls=True))
    assert attack(server, tmp_path / "proof") in (400, 403)
    assert http_status(server, "GET", "/v2/logging", "") == 200
    assert http_status(server, "POST", "/v2/repository/models/spin/unload", "{}") in (400, 403)
    assert infer(server) == [0.0, 0.0]
