"""Streams of gRPC. `LAST` has what a plain 2.51 may crash of a moment later."""

import asyncio
import contextlib
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import tritonclient.grpc as tg
import tritonclient.grpc.aio as tga

from conformance_calls.case import LONG_S, Cases, Target, Tensors, begun, infer, inputs, refusal, seen, x

CASES, LAST = Cases(), Cases()


class _Stream:
    """A stream whose answers are taken one by one."""

    def __init__(self, target: Target, **how: Any) -> None:
        self._answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client = tg.InferenceServerClient(target.address("grpc"))
        self._client.start_stream(lambda result, error: self._answers.put((result, error)), **how)

    def send(self, model: str, tensors: Tensors, **how: Any) -> None:
        self._client.async_stream_infer(model, inputs(tg, tensors), **how)

    def take(self, count: int) -> list[Any]:
        found = []
        for _ in range(count):
            result, error = self._answers.get(timeout=LONG_S)
            found.append(seen(result) if error is None else refusal(error))
        return found

    def stop(self, **how: Any) -> None:
        self._client.stop_stream(**how)


@contextlib.contextmanager
def _stream(target: Target, **how: Any) -> Iterator[_Stream]:
    made = _Stream(target, **how)
    try:
        yield made
    finally:
        made.stop()
        made._client.close()


@CASES.case("stream: the order of requests to several models, redirected")
def _(target: Target) -> Any:
    models = (("plain", x), ("batched", lambda i: x(i, shape=(1, 1))), ("slow", lambda _: x(0.01)))
    with _stream(target) as stream:
        found = []
        for half in (range(10), range(10, 20)):
            for i in half:
                model, given = models[i % 3]
                stream.send(model, given(i), request_id=str(i))
            found += stream.take(10)
            if half.start == 0:
                target.middle()
        return found


@CASES.case("stream: decoupled answers, redirected")
def _(target: Target) -> Any:
    with _stream(target) as stream:
        stream.send("ticks", x(5), request_id="a", enable_empty_final_response=True)
        found = stream.take(6)
        target.middle()
        stream.send("ticks", x(3), request_id="b")
        return [*found, *stream.take(3)]


@CASES.case("stream: answers of an ensemble with a decoupled step")
def _(target: Target) -> Any:
    with _stream(target) as stream:
        stream.send("streamed", x(4), enable_empty_final_response=True)
        found = stream.take(4)
        stream.send("streamed", x(0), enable_empty_final_response=True)
        return [*found, *stream.take(1)]


@CASES.case("stream: a sequence, redirected")
def _(target: Target) -> Any:
    with _stream(target) as stream:
        found = []
        for i in range(4):
            flags = {"sequence_id": 33, "sequence_start": i == 0, "sequence_end": i == 3}
            stream.send("oldest", x(i + 1, shape=(1, 1)), **flags)
            found += stream.take(1)
            if i == 1:
                target.middle()
        return found


@CASES.case("stream: an iterative sequence")
def _(target: Target) -> Any:
    with _stream(target) as stream:
        stream.send("iterative", x(4))
        return stream.take(4)


@CASES.case("stream: cancelled, which leaves its model free")
def _(target: Target) -> Any:
    with _stream(target) as stream:
        with begun(target, "slow"):
            stream.send("slow", x(30))
        stream.stop(cancel_requests=True)
        found = stream.take(1)
    return found, infer(target, "grpc", "slow", x(0))


@CASES.case("stream: errors do not end it")
def _(target: Target) -> Any:
    wrong: Tensors = {"X": ("INT32", [1])}
    with _stream(target) as stream:
        for model, tensors in (("nosuch", x(1)), ("plain", wrong), ("slow", x(-1)), ("plain", x(3))):
            stream.send(model, tensors)
        return stream.take(4)


@CASES.case("stream: a model's own errors")
def _(target: Target) -> Any:
    with _stream(target) as stream:
        for code in range(1, 9):
            stream.send("fails", x(code))
        return stream.take(8)


@CASES.case("stream: forwarded metadata, parameters and an empty last answer")
def _(target: Target) -> Any:
    with _stream(target, headers={"x-user": "u1"}) as stream:
        stream.send("about", x(1), parameters={"a": 1}, priority=1, enable_empty_final_response=True)
        return stream.take(1)


@CASES.case("stream: a named sequence beside another")
def _(target: Target) -> Any:
    with _stream(target) as stream:
        for i in range(3):
            for name in ("a", "b"):
                flags = {"sequence_id": name, "sequence_start": i == 0, "sequence_end": i == 2}
                stream.send("texts", x(i + 1, shape=(1, 1)), **flags)
        return stream.take(6)


@CASES.case("stream: its deadline")
def _(target: Target) -> Any:
    with _stream(target, stream_timeout=0.5) as stream:
        stream.send("slow", x(30))
        found = stream.take(1)
    return found, infer(target, "grpc", "slow", x(0))


@CASES.case("stream: a time limit in the queue")
def _(target: Target) -> Any:
    with _stream(target) as stream:
        with begun(target, "ranked"):
            stream.send("ranked", x(1, shape=(1, 1)))
        stream.send("ranked", x(0, shape=(1, 1)), timeout=1000)
        return stream.take(2)


@CASES.case("stream: an error of a decoupled model")
def _(target: Target) -> Any:
    with _stream(target) as stream:
        stream.send("ticks", x(-2))
        return stream.take(3)


@CASES.case("stream: compressed")
def _(target: Target) -> Any:
    with _stream(target, compression_algorithm="gzip") as stream:
        stream.send("plain", x(*range(500)))
        return stream.take(1)


@CASES.case("grpc-aio: a stream")
def _(target: Target) -> Any:
    async def run() -> Any:
        async def messages() -> Any:
            for i in range(5):
                yield {"model_name": "plain", "inputs": inputs(tga, x(i)), "request_id": str(i)}

        async with tga.InferenceServerClient(target.address("grpc-aio")) as client:
            return [seen(result) async for result, _ in client.stream_infer(messages())]

    return asyncio.run(run())


@LAST.case("grpc: a message of 300 MiB in a stream", "large-messages", slow=True)
def _(target: Target) -> Any:
    with _stream(target) as stream:
        stream.send("plain", {"X": ("FP32", np.zeros(75 * 2**20))})
        return [one[0] for one in stream.take(1)]


@LAST.case("stream: errors as statuses", slow=True)
def _(target: Target) -> Any:
    with _stream(target, headers={"triton_grpc_error": "true"}) as stream:
        stream.send("slow", x(-1))
        return stream.take(1)
