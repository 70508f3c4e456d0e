"""What tests of the gateway's clients share: tensors, raw HTTP, streams whose answers are taken singly."""

from __future__ import annotations

import http.client
import queue
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException


@dataclass(frozen=True)
class Target:
    """Where a client is pointed, and the folder of the model `slow` behind it (`gateway_rig.noted`)."""

    http: str
    grpc: str
    slow: Path

    def raw(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, **more: Any
    ) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers (in lower case) of one request on a connection of its own."""
        connection = http.client.HTTPConnection(self.http, timeout=60)
        try:
            connection.request(method, path, body, headers or {}, **more)
            answer = connection.getresponse()
            return answer.status, answer.read(), {k.lower(): v for k, v in answer.getheaders()}
        finally:
            connection.close()


def tensor(module: Any, values: np.ndarray[Any, Any], datatype: str = "FP32", **how: Any) -> list[Any]:
    """The inputs of a model with one input."""
    made = module.InferInput("INPUT", list(values.shape), datatype)
    made.set_data_from_numpy(values, **how)
    return [made]


def floats(*values: float) -> np.ndarray[Any, Any]:
    """A vector."""
    return np.array(values, dtype=np.float32)


def refusal(call: Callable[[], object]) -> tuple[str, str]:
    """Status and words of a call that must fail."""
    with pytest.raises(InferenceServerException) as caught:
        call()
    return str(caught.value.status()), str(caught.value.message())


class Talk:
    """A stream whose answers are taken one by one."""

    def __init__(self, client: Any, **how: Any) -> None:
        self.answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client = client
        client.start_stream(lambda result, error: self.answers.put((result, error)), **how)

    def take(self) -> Any:
        """The next answer, which must be no error."""
        result, error = self.answers.get(timeout=60)
        assert error is None, error
        return result
