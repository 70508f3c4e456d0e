"""Inferences by each of the four clients, and tensors that only some clients send."""

import json
from functools import partial
from typing import Any

import grpc
import numpy as np
import tritonclient.http as th
from conformance_zoo import DATATYPES
from tritonclient.grpc import service_pb2

from conformance_calls.case import CLIENTS, LONG_S, SERVICE, Cases, Target, Tensors, infer, inputs, seen, x

CASES = Cases()
TYPED: Tensors = {
    "X" + (str(i) if i else ""): (t, [b"a", b""] if t == "BYTES" else [1, 0]) for i, t in enumerate(DATATYPES)
}
_ONE = x(1, shape=(1, 1))
_INFERENCES: list[tuple[str, str, Tensors, dict[str, Any]]] = [
    ("no batching", "plain", x(1, 2, 3), {}),
    ("no values", "plain", x(), {}),
    ("an id", "plain", x(1), {"request_id": "mine"}),
    ("a wrong type", "plain", {"X": ("INT32", [1])}, {}),
    ("a wrong shape", "plain", x(1, shape=(1, 1)), {}),
    ("a wrong input", "plain", {"Z": ("FP32", [1])}, {}),
    ("no input", "plain", {}, {}),
    ("an unknown output", "plain", x(1), {"outputs": {"Z": 0}}),
    ("an unknown model", "nosuch", x(1), {}),
    ("a shared queue", "twin", x(1, 2), {}),
    ("a batch of two", "batched", x(1, 2, 3, 4, shape=(2, 2)), {}),
    ("a batch too large", "batched", x(*range(9), shape=(9, 1)), {}),
    ("all datatypes", "types", TYPED, {}),
    ("some outputs", "types", TYPED, {"outputs": {"Y1": 0, "Y3": 0}}),
    ("reshape", "reshaped", x(1, 2, 3, 4), {}),
    ("an optional input", "optional", {**_ONE, "X1": ("FP32", [[2]])}, {}),
    ("no optional input", "optional", _ONE, {}),
    ("ragged", "ragged", x(1, 2, 3, shape=(1, 3)), {}),
    ("classification", "labelled", x(1, 9, 3, shape=(1, 3)), {"outputs": {"Y": 2}}),
    ("nested ensembles", "nested", x(4, shape=(1, 1)), {}),
    ("a model that calls another", "calls", x(5, shape=(1, 1)), {}),
    ("warmup", "warmed", _ONE, {}),
    ("instances", "twice", _ONE, {}),
    ("a passive group", "passive", x(1), {}),
    ("the latest version", "versioned", x(1), {}),
    ("a version", "versioned", x(1), {"model_version": "1"}),
    ("a version that is not there", "versioned", x(1), {"model_version": "2"}),
    ("an error of the model", "slow", x(-1), {}),
    ("a version that the policy leaves out", "latest", x(1), {"model_version": "1"}),
    ("a specific version", "specific", x(1), {}),
    ("a response cache", "cached", _ONE, {}),
    ("the same for a response cache", "cached", _ONE, {}),
    ("an order that is preserved", "ordered", x(0, 0, shape=(2, 1)), {}),
    ("an iterative sequence", "iterative", x(1), {}),
    ("no start of a sequence", "direct", _ONE, {"sequence_id": 7}),
    ("a decoupled model", "ticks", x(1), {}),
    ("an ensemble with a decoupled step", "streamed", x(1), {}),
    (
        "parameters",
        "about",
        x(1),
        {
            "request_id": "r",
            "priority": 1,
            "timeout": 900_000_000,
            "parameters": {"a": 1, "b": "c", "d": True},
        },
    ),
    *((f"priority {level}", "ranked", _ONE, {"priority": level}) for level in (1, 3, 4)),
]


def _by(target: Target, kind: str, model: str, tensors: Tensors, how: dict[str, Any]) -> Any:
    if "outputs" in how:
        wanted = CLIENTS[kind].InferRequestedOutput
        how = {**how, "outputs": [wanted(name, class_count=n) for name, n in how["outputs"].items()]}
    return infer(target, kind, model, tensors, **how)


for _kind in CLIENTS:
    for _name, _model, _tensors, _how in _INFERENCES:
        _call = partial(_by, kind=_kind, model=_model, tensors=_tensors, how=_how)
        CASES.add(f"{_kind}: {_name}", _call, "shared-queue" if _model == "twin" else None)
    _option = "request_compression_algorithm" if _kind.startswith("http") else "compression_algorithm"
    for _algorithm in ("gzip", "deflate"):
        _long = x(*range(500), shape=(1, 500))
        CASES.add(
            f"{_kind}: {_algorithm}",
            partial(infer, kind=_kind, model="batched", tensors=_long, **{_option: _algorithm}),
        )
for _kind in ("http", "grpc"):
    _large: Tensors = {"X": ("FP32", np.arange(5 * 2**20))}
    _wanted = [CLIENTS[_kind].InferRequestedOutput("Y")]
    CASES.add(f"{_kind}: 20 MB", partial(infer, kind=_kind, model="plain", tensors=_large, outputs=_wanted))

_BF16 = np.array([1, -2], dtype=np.float32).view(np.uint32).__rshift__(16).astype(np.uint16).tobytes()


@CASES.case("http: BF16")
def _(target: Target) -> Any:
    parameters = {"binary_data_size": len(_BF16)}
    given = {"name": "X", "datatype": "BF16", "shape": [2], "parameters": parameters}
    head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    return target.raw("POST", "/v2/models/bf16/infer", head + _BF16, length)


@CASES.case("grpc: BF16")
def _(target: Target) -> Any:
    request = service_pb2.ModelInferRequest(model_name="bf16", raw_input_contents=[_BF16])
    request.inputs.add(name="X", datatype="BF16", shape=[2])
    return target.rpc(f"{SERVICE}/ModelInfer", request.SerializeToString())


@CASES.case("grpc: values that are not raw")
def _(target: Target) -> Any:
    request = service_pb2.ModelInferRequest(model_name="plain")
    request.inputs.add(name="X", datatype="FP32", shape=[2]).contents.fp32_contents.extend([3, 4])
    return target.rpc(f"{SERVICE}/ModelInfer", request.SerializeToString())


@CASES.case("http: at once over one client")
def _(target: Target) -> Any:
    with th.InferenceServerClient(target.address("http"), concurrency=4) as client:
        pending = [client.async_infer("plain", inputs(th, x(i)), request_id=str(i)) for i in range(8)]
        return [seen(one.get_result()) for one in pending]


CASES.add(
    "grpc: forwarded metadata",
    partial(infer, kind="grpc", model="about", tensors=x(1), headers={"x-user": "u1"}),
)
CASES.add(
    "grpc: what a model's code sees of others",
    partial(infer, kind="grpc", model="sees", tensors=x(1)),
    "own-server",
)


@CASES.case("grpc: metadata of answers")
def _(target: Target) -> Any:
    request = service_pb2.ModelInferRequest(model_name="plain", raw_input_contents=[bytes(4)])
    request.inputs.add(name="X", datatype="FP32", shape=[1])
    found = []
    for method, message in (
        ("ModelInfer", request.SerializeToString()),
        ("ModelInfer", b""),
        ("ServerLive", b""),
        ("ModelStatistics", service_pb2.ModelStatisticsRequest(name="nosuch").SerializeToString()),
    ):
        with grpc.insecure_channel(target.address("grpc")) as channel:
            call = channel.unary_unary(f"/{SERVICE}/{method}").future(message, timeout=LONG_S)
            metadata = call.initial_metadata(), call.trailing_metadata()
            found.append((call.code().name, call.details(), metadata))
    return found


def _codes(target: Target, kind: str, how: dict[str, Any]) -> Any:
    """Every error that a model's code can choose, and how often it was executed for them."""
    found = [infer(target, kind, "fails", x(code), **how) for code in (0, *range(1, 9), 0)]
    before, after = (answer[1]["Y"][2][0] for answer in (found[0], found[-1]))
    return found[1:-1], after - before


for _kind in ("http", "grpc"):
    _option = "request_compression_algorithm" if _kind == "http" else "compression_algorithm"
    for _words, _how in (("", {}), (", compressed", {_option: "gzip"})):
        # The id is long, since gRPC compresses no short message.
        _call = partial(_codes, kind=_kind, how={**_how, "request_id": "i" * 500})
        CASES.add(f"{_kind}: a model's own errors{_words}", _call)
