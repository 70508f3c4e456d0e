"""An open loop: requests at given times, whatever the answers."""

import threading
import time
from collections.abc import Sequence
from functools import partial

import grpc
import numpy as np

from controlplane.domain.errors import EngineError
from controlplane.profiler.load import OPTIONS, Answer, Answers, inference, words_of


def open_loop(target: str, request: bytes, due_s: Sequence[float], *, deadline_s: float) -> Answers:
    """Send a request at each of these times from now, independent of the answers, and wait for all answers.

    Latencies count from the due time, so they include the delay of requests behind a stalled server. Raises
    EngineError where a request fails or has no answer `deadline_s` after the last due time.
    """
    ended: list[tuple[float, float]] = []
    failures: list[str] = []
    left = threading.Semaphore(0)

    def done(due: float, answer: Answer) -> None:
        error = answer.exception()
        if error is None:
            ended.append((time.monotonic(), due))
        else:
            failures.append(words_of(error))
        left.release()

    with grpc.insecure_channel(target, options=OPTIONS) as channel:
        call = inference(channel)
        start = time.monotonic()
        for offset in due_s:
            due = start + offset
            # A point in time has no event to wait for.
            time.sleep(max(0.0, due - time.monotonic()))
            call(request).add_done_callback(partial(done, due))
        deadline = time.monotonic() + deadline_s
        for _ in due_s:
            if not left.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise EngineError(f"{target}: not every request was answered within {deadline_s:.0f} s")
    if failures:
        raise EngineError(f"{target}: {len(failures)} of {len(due_s)} requests failed: {failures[0]}")
    rows = np.array(sorted(ended)).reshape(-1, 2)
    return Answers(rows[:, 0], 1000.0 * (rows[:, 0] - rows[:, 1]))
