"""Every case runs against a bare Triton and against the gateway, with the same assertions."""

from __future__ import annotations

import asyncio
import base64
import gzip
import http.client
import json
import queue
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gateway_rig as rig
import grpc
import numpy as np
import pytest
import tritonclient.grpc as tg
import tritonclient.grpc.aio as tga
import tritonclient.http as th
import tritonclient.http.aio as tha
import tritonclient.utils.shared_memory as shm
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from controlplane.domain.fleet import Route

pytestmark = pytest.mark.e2e


@dataclass(frozen=True)
class Target:
    """Where a client is pointed, and the Triton that serves `slow` behind it."""

    http: str
    grpc: str
    slow: Path

    def raw(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, **more: Any
    ) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection(self.http, timeout=60)
        try:
            connection.request(method, path, body, headers or {}, **more)
            answer = connection.getresponse()
            return answer.status, answer.read(), {k.lower(): v for k, v in answer.getheaders()}
        finally:
            connection.close()


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    here = tmp_path_factory.mktemp("compatibility")
    left = {"echo": "echo", "slow": "slow", "text": "text"}
    right = {"repeat": "repeat", "total": "total", "other": "echo"}
    with (
        rig.tritons(here, bare=left | right, left=left, right=right) as running,
        rig.a_gateway(here) as (gateway, ports),
    ):
        gateway.commit(
            {name: Route((running["left" if name in left else "right"].backend,)) for name in left | right}
        )
        bare = running["bare"]
        yield {
            "bare": Target(
                f"{rig.HOST}:{bare.http_port}", f"{rig.HOST}:{bare.grpc_port}", here / "bare/slow/cancelled"
            ),
            "gateway": Target(
                f"{rig.HOST}:{ports.http}", f"{rig.HOST}:{ports.grpc}", here / "left/slow/cancelled"
            ),
        }


@pytest.fixture(params=["bare", "gateway"])
def target(request: pytest.FixtureRequest, targets: dict[str, Target]) -> Target:
    return targets[request.param]


BODY = (
    b'{"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [2], "data": [5, 6]}],'
    b' "outputs": [{"name": "OUTPUT"}]}'
)
CLIENTS = {"http": th, "grpc": tg}


@pytest.fixture(params=["http", "grpc"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def client(kind: str, target: Target) -> Iterator[Any]:
    made = CLIENTS[kind].InferenceServerClient(getattr(target, kind))
    try:
        yield made
    finally:
        made.close()


def tensor(module: Any, values: np.ndarray[Any, Any], datatype: str = "FP32", **how: Any) -> list[Any]:
    made = module.InferInput("INPUT", list(values.shape), datatype)
    made.set_data_from_numpy(values, **how)
    return [made]


def floats(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.float32)


def refusal(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as caught:
        call()
    return str(caught.value.status()), str(caught.value.message())


# --- the fleet's own calls


def test_live_and_ready(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()


def test_server_metadata(client: Any, kind: str) -> None:
    said = client.get_server_metadata()
    said = said if kind == "http" else {"version": said.version, "extensions": list(said.extensions)}
    assert said["version"] == "2.51.0"
    assert {"sequence", "system_shared_memory", "statistics", "trace", "logging"} <= set(said["extensions"])


def test_repository_index(client: Any, kind: str) -> None:
    said = client.get_model_repository_index()
    entries = said if kind == "http" else [{"name": m.name, "state": m.state} for m in said.models]
    assert {e["name"]: e["state"] for e in entries} == dict.fromkeys(
        ("echo", "slow", "text", "repeat", "total", "other"), "READY"
    )


def test_index_of_another_repository_is_refused(target: Target) -> None:
    with grpc.insecure_channel(target.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).RepositoryIndex(
            service_pb2.RepositoryIndexRequest(repository_name="x")
        )
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_loading_is_refused(client: Any) -> None:
    assert refusal(lambda: client.load_model("echo"))[0] in {
        *("403", "503", "StatusCode.PERMISSION_DENIED", "StatusCode.UNAVAILABLE")
    }


@pytest.mark.parametrize("model", ["echo", "repeat"])
def test_model_metadata_config_and_readiness(client: Any, kind: str, model: str) -> None:
    assert client.is_model_ready(model)
    assert client.is_model_ready(model, "1")
    metadata, config = client.get_model_metadata(model), client.get_model_config(model)
    if kind == "http":
        assert (metadata["name"], metadata["versions"]) == (model, ["1"])
        assert (config["name"], config["backend"]) == (model, "python")
    else:
        assert (metadata.name, list(metadata.versions)) == (model, ["1"])
        assert (config.config.name, config.config.backend) == (model, "python")


def test_statistics_of_one_model_count_its_requests(client: Any, kind: str) -> None:
    def count() -> int:
        said = client.get_inference_statistics("echo")
        return int(
            said["model_stats"][0]["inference_count"]
            if kind == "http"
            else said.model_stats[0].inference_count
        )

    before = count()
    client.infer("echo", tensor(CLIENTS[kind], floats(1)))
    deadline = time.monotonic() + 5  # a Triton counts a request after it has answered
    while count() == before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert count() == before + 1


def test_statistics_of_all_models(client: Any, kind: str) -> None:
    said = client.get_inference_statistics()
    names = [m["name"] for m in said["model_stats"]] if kind == "http" else [m.name for m in said.model_stats]
    assert sorted(names) == ["echo", "other", "repeat", "slow", "text", "total"]


# --- inference


def test_inference(client: Any, kind: str) -> None:
    result = client.infer("echo", tensor(CLIENTS[kind], floats(1, 2, 3)), request_id="mine")
    np.testing.assert_array_equal(result.as_numpy("OUTPUT"), floats(1, 2, 3))
    response = result.get_response()
    assert (response["id"] if kind == "http" else response.id) == "mine"


def test_inference_of_a_version(client: Any, kind: str) -> None:
    inputs = tensor(CLIENTS[kind], floats(4))
    assert client.infer("echo", inputs, model_version="1").as_numpy("OUTPUT")[0] == 4


def test_only_the_outputs_asked_for(client: Any, kind: str) -> None:
    module = CLIENTS[kind]
    result = client.infer("echo", tensor(module, floats(1)), outputs=[module.InferRequestedOutput("OUTPUT")])
    assert result.as_numpy("OUTPUT") is not None
    assert result.as_numpy("SERVER") is None


def test_classification(client: Any, kind: str) -> None:
    module = CLIENTS[kind]
    wanted = [module.InferRequestedOutput("OUTPUT", class_count=1)]
    result = client.infer("echo", tensor(module, floats(1, 9, 3)), outputs=wanted)
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
def test_the_answer_is_packed_as_asked(target: Target, encoding: str, pack: Callable[[bytes], bytes]) -> None:
    body = json.dumps(
        {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
    ).encode()
    status, answer, headers = target.raw(
        "POST",
        "/v2/models/echo/infer",
        pack(body),
        {"Content-Encoding": encoding, "Accept-Encoding": encoding},
    )
    assert (status, headers["content-encoding"]) == (200, encoding)
    unpacked = gzip.decompress(answer) if encoding == "gzip" else zlib.decompress(answer)
    assert b"OUTPUT" in unpacked


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
    connection = http.client.HTTPConnection(target.http, timeout=20)
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
        assert sorted(answers.get(timeout=10) for _ in range(8)) == list(range(8))


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


def test_generate(target: Target) -> None:
    status, answer, _ = target.raw("POST", "/v2/models/echo/generate", b'{"INPUT": [7]}')
    assert (status, json.loads(answer)["OUTPUT"]) == (200, 7)


def test_generate_stream(target: Target) -> None:
    status, answer, headers = target.raw("POST", "/v2/models/repeat/generate_stream", b'{"INPUT": [3, 0.05]}')
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    events = [json.loads(line[6:]) for line in answer.decode().splitlines() if line.startswith("data: ")]
    assert [event["OUTPUT"] for event in events] == [0, 1, 2]


# --- errors


def test_unknown_model(client: Any, kind: str) -> None:
    status, words = refusal(lambda: client.infer("nope", tensor(CLIENTS[kind], floats(1))))
    assert status == ("404" if kind == "http" else "StatusCode.NOT_FOUND")
    assert words == "Request for unknown model: 'nope' is not found"
    assert not client.is_model_ready("nope")
    assert refusal(lambda: client.get_model_config("nope"))[0] == status
    assert refusal(lambda: client.get_model_metadata("nope"))[1] == words


def test_statistics_of_an_unknown_model(client: Any, kind: str) -> None:
    assert refusal(lambda: client.get_inference_statistics("nope")) == (
        "400" if kind == "http" else "StatusCode.INVALID_ARGUMENT",
        "requested model 'nope' is not available",
    )


def test_unknown_version(client: Any, kind: str) -> None:
    _, words = refusal(lambda: client.infer("echo", tensor(CLIENTS[kind], floats(1)), model_version="3"))
    assert words == "Request for unknown model: 'echo' version 3 is not found"


def test_wrong_type(client: Any, kind: str) -> None:
    inputs = tensor(CLIENTS[kind], np.array([1], dtype=np.int32), "INT32")
    status, words = refusal(lambda: client.infer("echo", inputs))
    assert status == ("400" if kind == "http" else "StatusCode.INVALID_ARGUMENT")
    assert "data-type" in words


def test_wrong_shape(client: Any, kind: str) -> None:
    inputs = tensor(CLIENTS[kind], np.ones((2, 2), dtype=np.float32))
    assert "unexpected shape" in refusal(lambda: client.infer("echo", inputs))[1]


def test_wrong_input_name(client: Any, kind: str) -> None:
    wrong = CLIENTS[kind].InferInput("WRONG", [1], "FP32")
    wrong.set_data_from_numpy(floats(1))
    assert "WRONG" in refusal(lambda: client.infer("echo", [wrong]))[1]


def test_empty_body(target: Target) -> None:
    # Without an input for a model of variable length a Triton runs it with none of its values.
    assert target.raw("POST", "/v2/models/total/infer", b"")[0] == 400


def test_broken_json(target: Target) -> None:
    status, answer, _ = target.raw("POST", "/v2/models/echo/infer", b"{bad")
    assert status == 500
    assert b"JSON" in answer


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/echo/infer", 405),
        ("POST", "/v2/models/echo/ready", 405),
        ("POST", "/v2/health/live", 405),
        ("GET", "/v2/repository/index", 405),
        ("GET", "/v2/nothing", 404),
        ("GET", "/", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/v2/models/echo/versions/x", 404),
        ("GET", "/v2/models/nope/ready", 400),
        ("GET", "/v2/models/nope/versions/2/config", 404),
    ],
)
def test_paths_and_methods(target: Target, method: str, path: str, status: int) -> None:
    assert target.raw(method, path)[0] == status


def test_unary_grpc_to_a_decoupled_model(target: Target) -> None:
    with tg.InferenceServerClient(target.grpc) as client:
        status, _ = refusal(lambda: client.infer("repeat", tensor(tg, floats(1))))
    assert status == "StatusCode.UNIMPLEMENTED"


def test_an_unknown_method(target: Target) -> None:
    with grpc.insecure_channel(target.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/inference.GRPCInferenceService/Nothing")(b"", timeout=5)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


# --- deadlines, cancellation, connections


def until_noted(note: Path, before: int) -> None:
    deadline = time.monotonic() + 10
    while (len(note.read_text()) if note.exists() else 0) <= before:
        assert time.monotonic() < deadline, "the model was never told"
        time.sleep(0.02)


def noted(target: Target) -> int:
    return len(target.slow.read_text()) if target.slow.exists() else 0


def test_a_deadline_reaches_the_model(target: Target) -> None:
    before = noted(target)
    with tg.InferenceServerClient(target.grpc) as client:
        status, _ = refusal(lambda: client.infer("slow", tensor(tg, floats(8)), client_timeout=0.3))
    assert status == "StatusCode.DEADLINE_EXCEEDED"
    until_noted(target.slow, before)


def test_a_cancelled_call_is_cancelled_in_the_model(target: Target) -> None:
    before = noted(target)
    done = threading.Event()
    with tg.InferenceServerClient(target.grpc) as client:
        call = client.async_infer("slow", tensor(tg, floats(8)), lambda result, error: done.set())
        time.sleep(0.3)
        call.cancel()
        assert done.wait(5)
    until_noted(target.slow, before)


def test_a_cancelled_stream_is_cancelled_in_the_model(target: Target) -> None:
    before = noted(target)
    with tg.InferenceServerClient(target.grpc) as client:
        client.start_stream(lambda result, error: None)
        client.async_stream_infer("slow", tensor(tg, floats(8)))
        time.sleep(0.3)
        client.stop_stream(cancel_requests=True)
    until_noted(target.slow, before)


def test_keepalive_pings_are_welcome(target: Target) -> None:
    options = tg.KeepAliveOptions(
        keepalive_time_ms=200,
        keepalive_timeout_ms=1000,
        keepalive_permit_without_calls=True,
        http2_max_pings_without_data=0,
    )
    with tg.InferenceServerClient(target.grpc, keepalive_options=options) as client:
        for _ in range(3):
            assert client.infer("echo", tensor(tg, floats(1))) is not None
            time.sleep(0.4)


# --- streams


class Talk:
    """A stream whose answers are taken one by one."""

    def __init__(self, client: Any, **how: Any) -> None:
        self.answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client = client
        client.start_stream(lambda result, error: self.answers.put((result, error)), **how)

    def take(self) -> Any:
        result, error = self.answers.get(timeout=15)
        assert error is None, error
        return result


@pytest.fixture
def talk(target: Target) -> Iterator[Talk]:
    with tg.InferenceServerClient(target.grpc) as client:
        made = Talk(client)
        yield made
        client.stop_stream()


def test_a_stream_answers_in_order(talk: Talk) -> None:
    for i in range(50):
        talk.client.async_stream_infer("echo", tensor(tg, floats(i)), request_id=str(i))
    assert [talk.take().get_response().id for _ in range(50)] == [str(i) for i in range(50)]


def test_a_slow_answer_holds_the_quick_ones_behind_it(talk: Talk) -> None:
    talk.client.async_stream_infer("slow", tensor(tg, floats(0.3)), request_id="first")
    talk.client.async_stream_infer("other", tensor(tg, floats(1)), request_id="second")
    talk.client.async_stream_infer("echo", tensor(tg, floats(1)), request_id="third")
    assert [talk.take().get_response().id for _ in range(3)] == ["first", "second", "third"]


def test_decoupled_answers_come_in_order(talk: Talk) -> None:
    talk.client.async_stream_infer("repeat", tensor(tg, floats(20)))
    assert [talk.take().as_numpy("OUTPUT")[0] for _ in range(20)] == list(range(20))


def test_an_empty_final_answer_where_asked_for(talk: Talk) -> None:
    talk.client.async_stream_infer("repeat", tensor(tg, floats(2)), enable_empty_final_response=True)
    final = [talk.take().get_response().parameters["triton_final_response"].bool_param for _ in range(3)]
    assert final == [False, False, True]


def test_one_stream_for_several_models(talk: Talk) -> None:
    # No decoupled model among them: a bare 2.51 crashes on streams that mix the two kinds.
    for i in range(10):
        talk.client.async_stream_infer("echo", tensor(tg, floats(i)), request_id=f"e{i}")
        talk.client.async_stream_infer("other", tensor(tg, floats(i)), request_id=f"o{i}")
        talk.client.async_stream_infer("slow", tensor(tg, floats(0.01)), request_id=f"s{i}")
    ids = [talk.take().get_response().id for _ in range(30)]
    assert ids == [f"{letter}{i}" for i in range(10) for letter in "eos"]


def test_an_idle_stream_stays_open(talk: Talk) -> None:
    time.sleep(2.5)
    talk.client.async_stream_infer("echo", tensor(tg, floats(1)))
    assert talk.take().as_numpy("OUTPUT")[0] == 1
    time.sleep(2.5)
    talk.client.async_stream_infer("echo", tensor(tg, floats(2)))
    assert talk.take().as_numpy("OUTPUT")[0] == 2


@pytest.mark.parametrize("megabytes", [1, 20])
def test_large_streamed_tensors(talk: Talk, megabytes: int) -> None:
    values = np.arange(megabytes * 2**18, dtype=np.float32)
    talk.client.async_stream_infer("echo", tensor(tg, values))
    assert np.array_equal(talk.take().as_numpy("OUTPUT"), values)


def test_an_error_does_not_end_a_stream(talk: Talk) -> None:
    talk.client.async_stream_infer("nope", tensor(tg, floats(1)), request_id="a")
    _, error = talk.answers.get(timeout=10)
    assert "Request for unknown model: 'nope' is not found" in str(error)
    talk.client.async_stream_infer("echo", tensor(tg, np.array([1], dtype=np.int32), "INT32"))
    _, error = talk.answers.get(timeout=10)
    assert "data-type" in str(error)
    talk.client.async_stream_infer("echo", tensor(tg, floats(3)))
    assert talk.take().as_numpy("OUTPUT")[0] == 3


@pytest.mark.parametrize("model", ["nope", "echo"])
def test_an_error_in_a_stream_that_wants_grpc_errors(target: Target, model: str) -> None:
    with tg.InferenceServerClient(target.grpc) as client:
        talk = Talk(client, headers={"triton_grpc_error": "true"})
        client.async_stream_infer(model, tensor(tg, np.array([1], dtype=np.int32), "INT32"))
        _, error = talk.answers.get(timeout=10)
        assert ("unknown model" if model == "nope" else "data-type") in str(error)
        assert error.status() is None, "2.51 answers a request it does not begin with in the stream"
        client.stop_stream()


def test_a_compressed_stream(target: Target) -> None:
    with tg.InferenceServerClient(target.grpc) as client:
        talk = Talk(client, compression_algorithm="gzip")
        client.async_stream_infer("echo", tensor(tg, floats(*range(1000))))
        assert talk.take().as_numpy("OUTPUT")[999] == 999
        client.stop_stream()


def test_an_aio_stream(target: Target) -> None:
    async def run() -> list[float]:
        async def messages() -> Any:
            for i in range(10):
                yield {"model_name": "other", "inputs": tensor(tga, floats(i))}

        async with tga.InferenceServerClient(target.grpc) as client:
            return [result.as_numpy("OUTPUT")[0] async for result, _ in client.stream_infer(messages())]

    assert asyncio.run(run()) == list(range(10))


def test_a_stream_that_says_nothing_ends(target: Target) -> None:
    with tg.InferenceServerClient(target.grpc) as client:
        talk = Talk(client)
        client.stop_stream()
        assert talk.answers.empty()


# --- sequences


def step(client: Any, kind: str, value: float, number: int | str, **flags: bool) -> float:
    inputs = tensor(CLIENTS[kind], np.array([[value]], dtype=np.float32))
    result = client.infer("total", inputs, sequence_id=number, **flags)
    return float(result.as_numpy("OUTPUT")[0][0])


def test_a_sequence(client: Any, kind: str) -> None:
    assert step(client, kind, 1, 11, sequence_start=True) == 1
    assert step(client, kind, 2, 11) == 3
    assert step(client, kind, 3, 11, sequence_end=True) == 6


def test_a_sequence_over_both_protocols(target: Target) -> None:
    with th.InferenceServerClient(target.http) as one, tg.InferenceServerClient(target.grpc) as two:
        assert step(one, "http", 1, 12, sequence_start=True) == 1
        assert step(two, "grpc", 2, 12) == 3
        assert step(one, "http", 3, 12, sequence_end=True) == 6


def test_a_sequence_in_a_stream(talk: Talk) -> None:
    for i in range(5):
        talk.client.async_stream_infer(
            "total",
            tensor(tg, np.array([[i]], dtype=np.float32)),
            sequence_id=13,
            sequence_start=i == 0,
            sequence_end=i == 4,
        )
    assert [talk.take().as_numpy("OUTPUT")[0][0] for _ in range(5)] == [0, 1, 3, 6, 10]


def test_a_sequence_needs_a_beginning(client: Any, kind: str) -> None:
    assert "START" in refusal(lambda: step(client, kind, 1, 14))[1]


# --- shared memory


def test_system_shared_memory(client: Any, kind: str) -> None:
    module = CLIENTS[kind]
    key = f"/gw-test-{time.monotonic_ns()}"
    region = shm.create_shared_memory_region("region", key, 32)
    try:
        shm.set_shared_memory_region(region, [floats(1, 2, 3, 4)])
        client.register_system_shared_memory("region", key, 32)
        said = client.get_system_shared_memory_status()
        assert "region" in ([r["name"] for r in said] if kind == "http" else said.regions)
        for model in ("echo", "other"):
            given = module.InferInput("INPUT", [4], "FP32")
            given.set_shared_memory("region", 16)
            wanted = module.InferRequestedOutput("OUTPUT")
            wanted.set_shared_memory("region", 16, offset=16)
            client.infer(model, [given], outputs=[wanted])
            np.testing.assert_array_equal(
                shm.get_contents_as_numpy(region, np.float32, [4], offset=16), floats(1, 2, 3, 4)
            )
        assert (
            "already in manager"
            in refusal(lambda: client.register_system_shared_memory("region", key, 32))[1]
        )
        client.unregister_system_shared_memory("region")
        said = client.get_system_shared_memory_status()
        assert not (said if kind == "http" else said.regions)
    finally:
        shm.destroy_shared_memory_region(region)


def test_a_region_that_is_not_there(client: Any) -> None:
    assert (
        "Unable to open shared memory region"
        in refusal(lambda: client.register_system_shared_memory("x", "/not-there", 8))[1]
    )
    assert (
        "Unable to find system shared memory region"
        in refusal(lambda: client.get_system_shared_memory_status("x"))[1]
    )
    client.unregister_system_shared_memory("x")
    client.unregister_system_shared_memory()


def test_cuda_shared_memory_without_a_gpu(client: Any, kind: str) -> None:
    said = client.get_cuda_shared_memory_status()
    assert not (said if kind == "http" else said.regions)
    assert refusal(lambda: client.register_cuda_shared_memory("x", base64.b64encode(b"q" * 64), 0, 8))
    client.unregister_cuda_shared_memory()


# --- trace and log settings


def test_trace_settings(client: Any, kind: str) -> None:
    def rate(model: str | None = None) -> str:
        said = client.get_trace_settings(model)
        return str(said["trace_rate"] if kind == "http" else said.settings["trace_rate"].value[0])

    try:
        client.update_trace_settings(settings={"trace_rate": "77"})
        assert rate() == rate("repeat") == "77"
        client.update_trace_settings("repeat", {"trace_rate": "55"})
        assert (rate(), rate("echo"), rate("repeat")) == ("77", "77", "55")
        client.update_trace_settings("repeat", {"trace_rate": None})
        assert rate("repeat") == "77"
    finally:
        client.update_trace_settings(settings={"trace_rate": None})
    assert rate() == "1000"


def test_bad_trace_settings_change_nothing(client: Any, kind: str) -> None:
    assert "trace" in refusal(lambda: client.update_trace_settings(settings={"trace_rate": "many"}))[1]
    assert refusal(lambda: client.update_trace_settings("nope", {"trace_rate": "5"}))[0] == (
        "400" if kind == "http" else "StatusCode.INVALID_ARGUMENT"
    )
    said = client.get_trace_settings("echo")
    assert (said["trace_rate"] if kind == "http" else said.settings["trace_rate"].value[0]) == "1000"


def test_log_settings(client: Any, kind: str) -> None:
    def level() -> int:
        said = client.get_log_settings()
        return int(
            said["log_verbose_level"] if kind == "http" else said.settings["log_verbose_level"].uint32_param
        )

    try:
        client.update_log_settings({"log_verbose_level": 1})
        assert level() == 1
    finally:
        client.update_log_settings({"log_verbose_level": 0})
    assert level() == 0
    assert refusal(lambda: client.update_log_settings({"log_format": "nonsense"}))
