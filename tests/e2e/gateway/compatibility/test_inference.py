from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import queue
import zlib
from collections.abc import Callable
from typing import Any

import aiohttp
import numpy as np
import pytest
import requests
import tritonclient.grpc as tg
import tritonclient.grpc.aio as tga
import tritonclient.http as th
import tritonclient.http.aio as tha
from gateway_clients import CLIENTS, Target, floats, needs_shared_memory, tensor

pytestmark = pytest.mark.e2e


BODY = (
    b'{"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [2], "data": [5, 6]}],'
    b' "outputs": [{"name": "OUTPUT"}]}'
)


@pytest.mark.parametrize("model", ["echo", "twin"])
def test_inference(client: Any, kind: str, model: str) -> None:
    result = client.infer(model, tensor(CLIENTS[kind], floats(1, 2, 3)), request_id="mine")
    np.testing.assert_array_equal(result.as_numpy("OUTPUT"), floats(1, 2, 3))
    response = result.get_response()
    assert (response["id"] if kind == "http" else response.id) == "mine"


def test_inference_of_a_version(client: Any, kind: str) -> None:
    inputs = tensor(CLIENTS[kind], floats(4))
    assert client.infer("echo", inputs, model_version="1").as_numpy("OUTPUT")[0] == 4


@pytest.mark.parametrize("model", ["echo", "twin"])
def test_only_the_outputs_asked_for(client: Any, kind: str, model: str) -> None:
    module = CLIENTS[kind]
    result = client.infer(model, tensor(module, floats(1)), outputs=[module.InferRequestedOutput("OUTPUT")])
    assert result.as_numpy("OUTPUT") is not None
    assert result.as_numpy("SERVER") is None


@pytest.mark.parametrize("model", ["echo", "twin"])
def test_classification(client: Any, kind: str, model: str) -> None:
    module = CLIENTS[kind]
    wanted = [module.InferRequestedOutput("OUTPUT", class_count=1)]
    result = client.infer(model, tensor(module, floats(1, 9, 3)), outputs=wanted)
    assert result.as_numpy("OUTPUT")[0].decode().startswith("9.000000:1")


@pytest.mark.parametrize(("as_input", "as_output"), [(True, False), (False, True), (False, False)])
def test_binary_and_json_tensors(target: Target, as_input: bool, as_output: bool) -> None:
    with th.InferenceServerClient(target.http) as client:
        inputs = tensor(th, floats(1, 2), binary_data=as_input)
        outputs = [th.InferRequestedOutput("OUTPUT", binary_data=as_output)]
        result = client.infer("echo", inputs, outputs=outputs)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT"), floats(1, 2))


def test_strings(client: Any, kind: str) -> None:
    values = np.array([["abc", "", "ä€"]], dtype=object)
    result = client.infer("text", tensor(CLIENTS[kind], values, "BYTES"))
    assert [item for item in result.as_numpy("OUTPUT")[0]][:2] == [b"cba", b""]


@pytest.mark.parametrize("megabytes", [1, 20, 100])
def test_large_tensors(client: Any, kind: str, megabytes: int) -> None:
    needs_shared_memory(megabytes)
    values = np.arange(megabytes * 2**18, dtype=np.float32)
    result = client.infer("echo", tensor(CLIENTS[kind], values))
    assert np.array_equal(result.as_numpy("OUTPUT"), values)


@pytest.mark.parametrize("request_algorithm", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_algorithm", [None, "gzip", "deflate"])
def test_http_compression(
    target: Target, request_algorithm: str | None, response_algorithm: str | None
) -> None:
    with th.InferenceServerClient(target.http) as client:
        values = np.zeros(10000, dtype=np.float32)
        result = client.infer(
            "echo",
            tensor(th, values),
            request_compression_algorithm=request_algorithm,
            response_compression_algorithm=response_algorithm,
        )
        np.testing.assert_array_equal(result.as_numpy("OUTPUT"), values)


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_body_is_read_and_only_a_bare_triton_compresses_the_answer(
    target: Target, targets: dict[str, Target], encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    body = json.dumps(
        {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
    ).encode()
    status, answer, headers = target.raw(
        "POST",
        "/v2/models/echo/infer",
        pack(body),
        {"Content-Encoding": encoding, "Accept-Encoding": encoding},
    )
    used = headers.get("content-encoding")
    assert (status, used) == (200, encoding if target is targets["bare"] else None)
    unpack = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}[used]
    assert b"OUTPUT" in unpack(answer)


def test_clients_that_accept_compressed_answers_by_default(target: Target) -> None:
    async def with_aiohttp() -> Any:
        async with aiohttp.ClientSession() as session, session.post(url, data=BODY) as answer:
            return await answer.json()

    url = f"http://{target.http}/v2/models/echo/infer"
    for answer in (requests.post(url, BODY, timeout=60).json(), asyncio.run(with_aiohttp())):
        assert answer["outputs"][0]["data"] == [5, 6]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_aio_clients_that_compress(target: Target, algorithm: str) -> None:
    async def run() -> list[float]:
        async with (
            tha.InferenceServerClient(target.http) as over_http,
            tga.InferenceServerClient(target.grpc) as over_grpc,
        ):
            both: dict[str, Any] = {
                "request_compression_algorithm": algorithm,
                "response_compression_algorithm": algorithm,
            }
            results = [
                await over_http.infer("echo", tensor(tha, floats(1)), **both),
                await over_grpc.infer("echo", tensor(tga, floats(2)), compression_algorithm=algorithm),
            ]
            return [result.as_numpy("OUTPUT")[0] for result in results]

    assert asyncio.run(run()) == [1, 2]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_grpc_compression(target: Target, algorithm: str) -> None:
    with tg.InferenceServerClient(target.grpc) as client:
        values = np.arange(100000, dtype=np.float32)
        result = client.infer("echo", tensor(tg, values), compression_algorithm=algorithm)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT"), values)


def test_chunked_request(target: Target) -> None:
    parts = (BODY[i : i + 10] for i in range(0, len(BODY), 10))
    status, answer, _ = target.raw("POST", "/v2/models/echo/infer", parts, encode_chunked=True)
    assert status == 200
    assert json.loads(answer)["outputs"][0]["data"] == [5, 6]


def test_expect_continue(target: Target) -> None:
    body = b'{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[1],"data":[5]}]}'
    status, _, _ = target.raw("POST", "/v2/models/echo/infer", body, {"Expect": "100-continue"})
    assert status == 200


def test_many_requests_on_one_connection(target: Target) -> None:
    connection = http.client.HTTPConnection(target.http, timeout=60)
    body = b'{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[1],"data":[5]}]}'
    try:
        for path in ("/v2/models/echo/infer", "/v2/models/other/infer", "/v2/models/nope/infer") * 5:
            connection.request("POST", path, body)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == (404 if "nope" in path else 200)
    finally:
        connection.close()


def test_an_escaped_name_is_no_model(target: Target) -> None:
    assert target.raw("GET", "/v2/models/%65cho/config")[0] == 404


def test_asynchronous_http(target: Target) -> None:
    with th.InferenceServerClient(target.http, concurrency=4) as client:
        pending = [client.async_infer("echo", tensor(th, floats(i))) for i in range(8)]
        assert [p.get_result().as_numpy("OUTPUT")[0] for p in pending] == list(range(8))


def test_asynchronous_grpc(target: Target) -> None:
    answers: queue.Queue[float] = queue.Queue()
    with tg.InferenceServerClient(target.grpc) as client:
        for i in range(8):
            client.async_infer(
                "echo", tensor(tg, floats(i)), lambda result, error: answers.put(result.as_numpy("OUTPUT")[0])
            )
        assert sorted(answers.get(timeout=60) for _ in range(8)) == list(range(8))


@pytest.mark.parametrize("module", [tha, tga])
def test_aio_clients(target: Target, module: Any) -> None:
    async def run() -> list[float]:
        url = target.http if module is tha else target.grpc
        async with module.InferenceServerClient(url) as client:
            results = await asyncio.gather(
                *(client.infer("other", tensor(module, floats(i))) for i in range(8))
            )
            return [r.as_numpy("OUTPUT")[0] for r in results]

    assert asyncio.run(run()) == list(range(8))


@pytest.mark.parametrize("model", ["echo", "twin"])
def test_generate(target: Target, model: str) -> None:
    status, answer, _ = target.raw("POST", f"/v2/models/{model}/generate", b'{"INPUT": [7]}')
    assert (status, json.loads(answer)["OUTPUT"]) == (200, 7)


@pytest.mark.parametrize("model", ["repeat", "again"])
def test_generate_stream(target: Target, model: str) -> None:
    path = f"/v2/models/{model}/generate_stream"
    status, answer, headers = target.raw("POST", path, b'{"INPUT": [3, 0.05]}')
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    events = [json.loads(line[6:]) for line in answer.decode().splitlines() if line.startswith("data: ")]
    assert [event["OUTPUT"] for event in events] == [0, 1, 2]
