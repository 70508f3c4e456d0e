from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as tg
import tritonclient.grpc.aio as tga
import tritonclient.http as th
from gateway_clients import CLIENTS, Talk, Target, floats, needs_shared_memory, refusal, tensor

pytestmark = pytest.mark.e2e


def test_a_stream_answers_in_order(talk: Talk) -> None:
    for i in range(50):
        talk.client.async_stream_infer("echo", tensor(tg, floats(i)), request_id=str(i))
    assert [talk.take().get_response().id for _ in range(50)] == [str(i) for i in range(50)]


def test_a_slow_answer_holds_the_quick_ones_behind_it(talk: Talk) -> None:
    talk.client.async_stream_infer("slow", tensor(tg, floats(0.3)), request_id="first")
    talk.client.async_stream_infer("other", tensor(tg, floats(1)), request_id="second")
    talk.client.async_stream_infer("echo", tensor(tg, floats(1)), request_id="third")
    assert [talk.take().get_response().id for _ in range(3)] == ["first", "second", "third"]


@pytest.mark.parametrize("model", ["repeat", "again"])
def test_decoupled_answers_come_in_order(talk: Talk, model: str) -> None:
    talk.client.async_stream_infer(model, tensor(tg, floats(20)))
    assert [talk.take().as_numpy("OUTPUT")[0] for _ in range(20)] == list(range(20))


@pytest.mark.parametrize("model", ["repeat", "again"])
def test_an_empty_final_answer_where_asked_for(talk: Talk, model: str) -> None:
    talk.client.async_stream_infer(model, tensor(tg, floats(2)), enable_empty_final_response=True)
    final = [talk.take().get_response().parameters["triton_final_response"].bool_param for _ in range(3)]
    assert final == [False, False, True]


def test_one_stream_for_several_models(talk: Talk) -> None:
    # No decoupled model among them: a bare 2.51 crashes on streams that mix the two kinds.
    for i in range(10):
        talk.client.async_stream_infer("echo", tensor(tg, floats(i)), request_id=f"e{i}")
        talk.client.async_stream_infer("other", tensor(tg, floats(i)), request_id=f"o{i}")
        talk.client.async_stream_infer("slow", tensor(tg, floats(0.01)), request_id=f"s{i}")
        talk.client.async_stream_infer("twin", tensor(tg, floats(i)), request_id=f"t{i}")
    ids = [talk.take().get_response().id for _ in range(40)]
    assert ids == [f"{letter}{i}" for i in range(10) for letter in "eost"]


def test_an_idle_stream_stays_open(talk: Talk) -> None:
    time.sleep(2.5)
    talk.client.async_stream_infer("echo", tensor(tg, floats(1)))
    assert talk.take().as_numpy("OUTPUT")[0] == 1
    time.sleep(2.5)
    talk.client.async_stream_infer("echo", tensor(tg, floats(2)))
    assert talk.take().as_numpy("OUTPUT")[0] == 2


@pytest.mark.parametrize("megabytes", [1, 20])
def test_large_streamed_tensors(talk: Talk, megabytes: int) -> None:
    needs_shared_memory(megabytes)
    values = np.arange(megabytes * 2**18, dtype=np.float32)
    talk.client.async_stream_infer("echo", tensor(tg, values))
    assert np.array_equal(talk.take().as_numpy("OUTPUT"), values)


def test_an_error_does_not_end_a_stream(talk: Talk) -> None:
    talk.client.async_stream_infer("nope", tensor(tg, floats(1)), request_id="a")
    _, error = talk.answers.get(timeout=60)
    assert "Request for unknown model: 'nope' is not found" in str(error)
    talk.client.async_stream_infer("echo", tensor(tg, np.array([1], dtype=np.int32), "INT32"))
    _, error = talk.answers.get(timeout=60)
    assert "data-type" in str(error)
    talk.client.async_stream_infer("echo", tensor(tg, floats(3)))
    assert talk.take().as_numpy("OUTPUT")[0] == 3


@pytest.mark.parametrize("model", ["nope", "echo"])
def test_an_error_in_a_stream_that_wants_grpc_errors(target: Target, model: str) -> None:
    with tg.InferenceServerClient(target.grpc) as client:
        talk = Talk(client, headers={"triton_grpc_error": "true"})
        client.async_stream_infer(model, tensor(tg, np.array([1], dtype=np.int32), "INT32"))
        _, error = talk.answers.get(timeout=60)
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
