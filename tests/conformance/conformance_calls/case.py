"""Cases, the target of their calls, and answers as they are compared."""

import asyncio
import contextlib
import http.client
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as tg
import tritonclient.grpc.aio as tga
import tritonclient.http as th
import tritonclient.http.aio as tha
from background import until
from google.protobuf import json_format
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

LONG_S = 60.0
CLIENTS = {"http": th, "grpc": tg, "http-aio": tha, "grpc-aio": tga}
SERVICE = "inference.GRPCInferenceService"
_MANY = 10_000
"""Values that are compared by their hash."""


@dataclass(frozen=True)
class Target:
    """Where clients are pointed. `middle` is called in the middle of a case: a fleet is redirected then."""

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    middle: Callable[[], None]

    def address(self, kind: str) -> str:
        return f"{self.host}:{self.http_port if kind.startswith('http') else self.grpc_port}"

    def raw(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **more: Any
    ) -> Any:
        """Status, headers and body of one request on a connection of its own."""
        connection = http.client.HTTPConnection(self.host, self.http_port, timeout=LONG_S)
        try:
            connection.request(method, path, body, dict(headers or {}), **more)
            answer = connection.getresponse()
            return answer.status, sorted(answer.getheaders()), answer.read()
        except (OSError, http.client.HTTPException):
            return "no answer"
        finally:
            connection.close()

    def page(self) -> str:
        """The page of metrics."""
        at = f"http://{self.host}:{self.metrics_port}/metrics"
        with urllib.request.urlopen(at, timeout=LONG_S) as page:
            text: str = page.read().decode()
            return text

    def counted(self, metric: str, model: str) -> float:
        """A metric of a model, of all its servers together."""
        found: list[float] = []
        of = f'{metric}{{model="{model}"'

        def read() -> bool:
            found[:] = [float(line.split()[-1]) for line in self.page().splitlines() if line.startswith(of)]
            return bool(found)  # a server that is short of time is left out of a page

        until(read)
        return sum(found)

    def rpc(self, method: str, message: bytes = b"", **how: Any) -> Any:
        """Message or status of one call, by the method's whole name."""
        with grpc.insecure_channel(self.address("grpc")) as channel:
            try:
                return channel.unary_unary(f"/{method}")(message, timeout=LONG_S, **how)
            except grpc.RpcError as error:
                return error.code().name, error.details()


Call = Callable[[Target], Any]


@dataclass(frozen=True)
class Case:
    """A call by name; `row` names the difference that it shows."""

    name: str
    call: Call
    row: str | None = None
    slow: bool = False


class Cases(list[Case]):
    """Those of a module, in their order."""

    def case(self, name: str, row: str | None = None, *, slow: bool = False) -> Callable[[Call], Call]:
        """Add a function."""

        def add(call: Call) -> Call:
            self.append(Case(name, call, row, slow))
            return call

        return add

    def add(self, name: str, call: Call, row: str | None = None) -> None:
        self.append(Case(name, call, row))


def refusal(error: InferenceServerException) -> tuple[str, str]:
    """Status and words."""
    return str(error.status()), str(error.message())


def seen(result: Any) -> Any:
    """An answer as its client reads it, with what its message says."""
    said = result.get_response()
    if not isinstance(said, dict):
        said = json_format.MessageToDict(said)
        said.pop("rawOutputContents", None)
    names = [output["name"] for output in said.get("outputs", ())]
    return said, {name: _listed(result.as_numpy(name)) for name in names}


def _listed(values: Any) -> Any:
    if values is None:
        return None
    content = values.tolist() if values.size < _MANY else hash(values.tobytes())
    return str(values.dtype), values.shape, content


Tensors = Mapping[str, tuple[str, Any]]
"""Input -> datatype and values."""


def x(*values: float, shape: tuple[int, ...] | None = None) -> Tensors:
    return {"X": ("FP32", np.array(values, dtype=np.float32).reshape(shape or (len(values),)))}


def inputs(module: Any, tensors: Tensors) -> list[Any]:
    made = []
    for name, (datatype, values) in tensors.items():
        array = np.array(values, dtype=np.float32 if datatype == "BF16" else triton_to_np_dtype(datatype))
        tensor = module.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def infer(target: Target, kind: str, model: str, tensors: Tensors, **how: Any) -> Any:
    """Answer or refusal of one client's inference."""
    module = CLIENTS[kind]
    given = inputs(module, tensors)

    async def run() -> Any:
        async with module.InferenceServerClient(target.address(kind)) as client:
            return await client.infer(model, given, **how)

    try:
        if kind.endswith("aio"):
            return seen(asyncio.run(run()))
        with module.InferenceServerClient(target.address(kind)) as client:
            return seen(client.infer(model, given, **how))
    except InferenceServerException as error:
        return refusal(error)


@contextlib.contextmanager
def begun(target: Target, model: str) -> Iterator[None]:
    """Return from the context once the model executes what is sent within it."""
    before = target.counted("begun", model)
    yield
    until(lambda: target.counted("begun", model) > before)


def attempt(call: Callable[[], Any]) -> Any:
    """What a client's call returns, or its refusal."""
    try:
        return call()
    except InferenceServerException as error:
        return refusal(error)
