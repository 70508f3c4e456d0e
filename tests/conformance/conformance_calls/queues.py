"""Deadlines, cancelled calls, and what happens to requests while a model executes another."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import tritonclient.grpc as tg
from tritonclient.utils import InferenceServerException

from conformance_calls.case import LONG_S, Cases, Target, inputs, refusal, x

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
        call = client.async_infer("slow", inputs(tg, x(30)), lambda result, error: ended.put(error))
        time.sleep(0.3)  # until it executes: nothing that a client sees says so
        call.cancel()
        status = ended.get(timeout=LONG_S).status()
        began = time.monotonic()
        client.infer("slow", inputs(tg, x(0)))
        return status, time.monotonic() - began < 20


def _queued(
    target: Target, busy: tuple[str, float], requests: Iterable[tuple[str, str, dict[str, Any]]]
) -> list[Any]:
    """Ends in their order, of requests that come while one of so many seconds executes.

    Each takes 0.1 s: answers that are ready within a millisecond of each other reach a client in any order.
    """
    ends: queue.Queue[Any] = queue.Queue()
    sent: list[tuple[str, str, dict[str, Any]]] = [("busy", busy[0], {}), *requests]
    with tg.InferenceServerClient(target.address("grpc")) as client:
        for number, (name, model, how) in enumerate(sent):
            shape = (1,) if model in ("plain", "slow", "unbatched") else (1, 1)
            given = inputs(tg, x(0.1 if number else busy[1], shape=shape))
            client.async_infer(
                model, given, lambda result, error, of=name: ends.put((of, error and refusal(error))), **how
            )
            # The first executes then, which nothing says that a client sees; the others come in this order.
            time.sleep(0.05 if number else 0.3)
        return [ends.get(timeout=LONG_S) for _ in sent]


@CASES.case("queue: priorities")
def _(target: Target) -> Any:
    return _queued(target, ("ranked", 1.5), [(f"p{n}", "ranked", {"priority": n}) for n in (3, 2, 1, 3)])


@CASES.case("queue: a request's own time limit")
def _(target: Target) -> Any:
    late, patient = ("late", "ranked", {"timeout": 1000}), ("patient", "ranked", {})
    return _queued(target, ("ranked", 1.5), [late, patient])


def _full(target: Target, model: str) -> Any:
    return sorted(_queued(target, (model, 1.5), [(name, model, {}) for name in "abc"]), key=str)


CASES.add("queue: its size", partial(_full, model="short"))
CASES.add("queue: its size without batching", partial(_full, model="unbatched"))


@CASES.case("queue: a request beside a long one of another model", "turns")
def _(target: Target) -> Any:
    return [name for name, _ in _queued(target, ("slow", 1.5), [("short", "plain", {})])]
