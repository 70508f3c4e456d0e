"""JSON that is nested deeper than a Triton's parser survives, wherever a server would parse it."""

import gzip
import json
import random
import zlib
from collections.abc import Iterator
from typing import Any

import gateway_rig as rig
import httpx
import numpy as np
import pytest
from background import stopped
from gateway_clients import Served, Target, served
from host_ports import free_ports

from controlplane.domain.fleet import Backend, Route
from controlplane.gateway import processes
from controlplane.render.haproxy import DEEPEST_JSON

INFER = "/v2/models/echo/infer"
LENGTH = "Inference-Header-Content-Length"
FATAL = 400_000
"""Levels that end a Triton 2.51."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    here = tmp_path_factory.mktemp("nesting")
    models = {"echo": "echo", "spare": "echo"}
    with served(here, models) as made:
        alive = made.triton.backend
        dead = Backend("dead", rig.HOST, *free_ports(3))
        made.gateway.commit({"echo": Route((alive,)), "spare": Route((dead,), alive)})
        yield made


@pytest.fixture
def target(guarded: Served) -> Iterator[Target]:
    """With a server that must be alive afterwards."""
    target = guarded.target
    yield target
    assert target.raw("POST", INFER, request(1.5))[0] == 200
    assert guarded.triton.process.poll() is None


def request(*values: Any, more: str = "") -> bytes:
    shape = [int(np.size(np.array(values)))]
    data = json.dumps(values)
    text = f'{{"inputs": [{{"name": "INPUT", "datatype": "FP32", "shape": {shape}, "data": {data}}}]{more}}}'
    return text.encode()


def nested(levels: int, before: int = 0) -> bytes:
    """A request with so many levels in all, behind so many bytes."""
    begin = request(1.0, *[2.5] * (before // 5))[:-1] + b', "more": '
    return begin + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def answered(target: Target, body: bytes, way: str, path: str = INFER) -> tuple[int, bytes]:
    match way:
        case "gzip" | "deflate":
            packed = gzip.compress(body, 1) if way == "gzip" else zlib.compress(body, 1)
            return target.raw("POST", path, packed, {"Content-Encoding": way})[:2]
        case "chunked":
            parts = (body[at : at + 10_000] for at in range(0, len(body), 10_000))
            return target.raw("POST", path, parts, encode_chunked=True)[:2]
        case "binary":
            return target.raw("POST", path, body + b"[" * 100, {LENGTH: str(len(body))})[:2]
        case "HTTP/2":
            with httpx.Client(http1=False, http2=True, timeout=60) as client:
                answer = client.post(f"http://{target.http}{path}", content=body)
                return answer.status_code, answer.content
    return target.raw("POST", path, body)[:2]


WAYS = ("plain", "gzip", "deflate", "chunked", "binary", "HTTP/2")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("before", [0, 40_000, 3_000_000])
def test_deep_json_is_refused_before_a_server_reads_it(target: Target, way: str, before: int) -> None:
    for levels in (DEEPEST_JSON + 1, FATAL):
        status, body = answered(target, nested(levels, before), way)
        assert (status, str(DEEPEST_JSON) in json.loads(body)["error"]) == (400, True)


@pytest.mark.parametrize("path", ["generate", "generate_stream", "versions/1/infer", "versions/1/generate"])
@pytest.mark.parametrize("before", [0, 40_000])
def test_every_path_with_json_is_guarded(target: Target, path: str, before: int) -> None:
    for headers in ({}, {LENGTH: "0"}):
        if headers and path.endswith("infer"):
            continue
        body = nested(FATAL, before)
        status, _, _ = target.raw("POST", f"/v2/models/echo/{path}", body, headers)
        assert status == 400


@pytest.mark.parametrize("length", ["{0},0", "{0}", "+{0}", " {0}", "{0}x", "999999999"])
def test_no_spelling_of_the_length_hides_json(target: Target, length: str) -> None:
    body = nested(FATAL)
    assert target.raw("POST", INFER, body, {LENGTH: length.format(len(body))})[0] == 400


@pytest.mark.parametrize(
    "path",
    [
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/models/echo/trace/setting",
        "/v2/repository/index",
        "/v2/systemsharedmemory/region/r/register",
        "/v2/cudasharedmemory/region/r/register",
    ],
)
def test_fleet_wide_calls_are_guarded(target: Target, path: str) -> None:
    assert target.raw("POST", path, nested(FATAL))[0] == 400


@pytest.mark.parametrize("way", WAYS[:-2])
@pytest.mark.parametrize("before", [0, 40_000, 3_000_000])
def test_json_of_the_deepest_allowed_nesting_is_served(target: Target, way: str, before: int) -> None:
    assert answered(target, nested(DEEPEST_JSON, before), way)[0] == 200


@pytest.mark.parametrize("count", [10, 5_000, 200_000])
def test_wide_json_and_brackets_in_strings_are_served(target: Target, count: int) -> None:
    wide = request(*[[1.5, 2.5]] * count)
    texts = request(1.5, more=', "id": ' + json.dumps('[{\\"' * count))
    for body in (wide, texts):
        assert target.raw("POST", INFER, body)[0] == 200


@pytest.mark.parametrize("floats", [1, 5_000, 500_000])
def test_tensors_of_brackets_are_no_json(target: Target, floats: int) -> None:
    tensor = b"[" * (4 * floats)
    head = (
        f'{{"inputs": [{{"name": "INPUT", "datatype": "FP32", "shape": [{floats}], '
        f'"parameters": {{"binary_data_size": {len(tensor)}}}}}]}}'
    ).encode()
    for body, length in ((head + tensor, len(head)), (tensor, 0)):
        assert target.raw("POST", INFER, body, {LENGTH: str(length)})[0] == 200


def test_what_is_shallow_in_the_buffer_needs_no_facade(guarded: Served, target: Target) -> None:
    head = (
        b'{"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [500000], '
        b'"parameters": {"binary_data_size": 2000000}}]}'
    )
    (facade,) = processes.find(guarded.places, processes.FACADE)
    with stopped(facade):
        for body in (request(1.5), nested(DEEPEST_JSON), nested(10, 25_000)):
            assert target.raw("POST", INFER, body)[0] == 200
        for body, length in ((head + bytes(2_000_000), len(head)), (bytes(2_000_000), 0)):
            assert target.raw("POST", INFER, body, {LENGTH: str(length)})[0] == 200


def test_large_json_goes_to_the_backup_of_a_dead_server(target: Target) -> None:
    for body in (request(1.5), request(*[1.5] * 20_000)):
        assert target.raw("POST", "/v2/models/spare/infer", body)[0] == 200


def test_haproxy_and_the_facade_agree_on_random_json(target: Target) -> None:
    chance = random.Random(1)
    for _ in range(200):
        value: Any = chance.choice(["[", '"', "\\", "\\[{", 1, None, "é"])
        levels = chance.randrange(DEEPEST_JSON - 8, DEEPEST_JSON + 6)
        for _ in range(levels):
            value = [value, chance.choice(["]", '\\"]', 2, "}"])] if chance.random() < 0.5 else {'{"': value}
        body = request(1.5, more=', "more": ' + json.dumps(value, ensure_ascii=chance.random() < 0.5))
        wanted = 200 if levels + 1 <= DEEPEST_JSON else 400
        ways = [
            target.raw("POST", INFER, body, headers)[0] for headers in ({}, {"Content-Encoding": "identity"})
        ]
        assert ways == [wanted, wanted], body
