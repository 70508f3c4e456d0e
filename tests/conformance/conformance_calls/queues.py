"""Deadlines, cancelled calls, and what happens to requests while a model executes another."""

import queue
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tritonclient.grpc as tg
from background import until
from tritonclient.utils import InferenceServerException

from conformance_calls.case import LONG_S, Cases, Target, begun, inputs, refusal, x

CASES = Cases()


@CASES.case("grpc: a deadline")
def _(target: Target) -> Any:
    with tg.InferenceServerClient(target.address("grpc")) as client:
        try:
            client.infer("slow", inputs(tg, x(30)), client_timeout=0.3)
        except InferenceServerException as error:
            return refusal(error)[0]


@CASES.case("grpc: a cancelled call leaves its model free")
def _(target: Target) -> Any:
    ended: queue.Queue[Any] = queue.Queue()
    with tg.InferenceServerClient(target.address("grpc")) as client:
        with begun(target, "slow"):
            call = client.async_infer("slow", inputs(tg, x(30)), lambda result, error: ended.put(error))
        call.cancel()
        status = ended.get(timeout=LONG_S).status()
        began = time.monotonic()
        client.infer("slow", inputs(tg, x(0)))
        return status, time.monotonic() - began < 20


def _queued(target: Target, busy: str, requests: Sequence[tuple[str, str, dict[str, Any]]]) -> list[Any]:
    """Ends in their order, of requests that come one by one while a model is `busy`, until that is cancelled.

    Each takes 0.1 s: answers that are ready within a millisecond of each other reach a client in any order.
    """
    ends: queue.Queue[Any] = queue.Queue()

    def end(name: str) -> Callable[[Any, Any], None]:
        return lambda result, error: ends.put((name, error and refusal(error)))

    def taking(model: str, seconds: float) -> list[Any]:
        return inputs(tg, x(seconds, shape=(1,) if model in ("plain", "slow", "unbatched") else (1, 1)))

    def arrived(model: str, count: int) -> bool:
        return target.counted("nv_inference_pending_request_count", model) + ends.qsize() >= count

    with tg.InferenceServerClient(target.address("grpc")) as client:
        with begun(target, busy):
            executing = client.async_infer(busy, taking(busy, LONG_S), end("busy"))
        for count, (name, model, how) in enumerate(requests, start=1):
            client.async_infer(model, taking(model, 0.1), end(name), **how)
            until(partial(arrived, model, count))
        executing.cancel()
        return [ends.get(timeout=LONG_S) for _ in ("busy", *requests)]


@CASES.case("queue: priorities")
def _(target: Target) -> Any:
    return _queued(target, "ranked", [(f"p{n}", "ranked", {"priority": n}) for n in (3, 2, 1, 3)])


@CASES.case("queue: a request's own time limit")
def _(target: Target) -> Any:
    late, patient = ("late", "ranked", {"timeout": 1000}), ("patient", "ranked", {})
    # Nothing says when the late one is refused: as soon as it is, or once the model is free.
    return [end for end in _queued(target, "ranked", [late, patient]) if end[0] != "busy"]


def _full(target: Target, model: str) -> Any:
    return sorted(_queued(target, model, [(name, model, {}) for name in "abc"]), key=str)


CASES.add("queue: its size", partial(_full, model="short"))
CASES.add("queue: its size without batching", partial(_full, model="unbatched"))


@CASES.case("queue: a request beside a long one of another model", "turns")
def _(target: Target) -> Any:
    return [name for name, _ in _queued(target, "slow", [("short", "plain", {})])]
