"""Real inferences on a running server, which prove that a model answers.

Readiness is no proof: a model whose Python process died still reports that it is ready.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import RELOAD_HEADER, Server
from controlplane.domain.tensors import SAMPLE_TEXT

_BYTES_OF = {
    "TYPE_BOOL": 1,
    "TYPE_UINT8": 1,
    "TYPE_INT8": 1,
    "TYPE_UINT16": 2,
    "TYPE_INT16": 2,
    "TYPE_FP16": 2,
    "TYPE_BF16": 2,
    "TYPE_UINT32": 4,
    "TYPE_INT32": 4,
    "TYPE_FP32": 4,
    "TYPE_UINT64": 8,
    "TYPE_INT64": 8,
    "TYPE_FP64": 8,
}

_TEXT = struct.pack("<I", len(SAMPLE_TEXT)) + SAMPLE_TEXT

_SEQUENCE = 7_236_280_107_668_635_753
"""A random sequence id, which no client has."""


@dataclass(frozen=True, slots=True)
class ZeroInput:
    """One input of a model, all zeros (a sample text for BYTES), in KServe's binary layout."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


def zero_inputs(config: Mapping[str, Any], *, batch: int = 1) -> tuple[ZeroInput, ...]:
    """Return zeros, or texts, for every input that a model's configuration (GET .../config) requires.

    A variable dimension counts as 1. Raises EngineError for an unknown data type.
    """
    inputs = []
    for wanted in config.get("input", []):
        if wanted.get("optional"):
            continue
        dims = [max(1, int(d)) for d in wanted["dims"]]
        shape = (batch, *dims) if int(config.get("max_batch_size", 0)) > 0 else tuple(dims)
        count = 1
        for d in shape:
            count *= d
        kind = wanted["data_type"]
        if kind == "TYPE_STRING":
            inputs.append(ZeroInput(wanted["name"], "BYTES", shape, _TEXT * count))
        elif kind in _BYTES_OF:
            data = bytes(_BYTES_OF[kind] * count)
            inputs.append(ZeroInput(wanted["name"], kind.removeprefix("TYPE_"), shape, data))
        else:
            raise EngineError(f"input {wanted['name']}: no zero is known for {kind}")
    return tuple(inputs)


@dataclass(frozen=True, slots=True)
class ZeroRequest:
    """A serialized inference of zeros: the body of POST .../infer and the length of its JSON part.

    For a decoupled model, which answers streams only, it is a gRPC message and `json_length` is None.
    """

    body: bytes
    json_length: int | None


def zero_request(endpoint: str, config: Mapping[str, Any]) -> ZeroRequest:
    """Return the inference for a model with this configuration; for sequences, a whole sequence.

    Raises EngineError for an unknown data type.
    """
    alone = {"sequence_id": _SEQUENCE, "sequence_start": True, "sequence_end": True}
    parameters = alone if "sequence_batching" in config else {}
    inputs = zero_inputs(config)
    if config.get("model_transaction_policy", {}).get("decoupled", False):
        return ZeroRequest(_message(endpoint, inputs, parameters), None)
    return ZeroRequest(*infer_body(inputs, parameters))


def infer_body(inputs: tuple[ZeroInput, ...], parameters: Mapping[str, Any]) -> tuple[bytes, int]:
    """Return the body of POST .../infer and the length of its JSON part."""
    header = {
        "inputs": [
            {
                "name": i.name,
                "shape": list(i.shape),
                "datatype": i.datatype,
                "parameters": {"binary_data_size": len(i.data)},
            }
            for i in inputs
        ],
        "parameters": {**parameters, "binary_data_output": True},
    }
    text = json.dumps(header).encode()
    return text + b"".join(i.data for i in inputs), len(text)


def _message(endpoint: str, inputs: tuple[ZeroInput, ...], parameters: Mapping[str, int | bool]) -> bytes:
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=endpoint)
    for name, value in parameters.items():
        if isinstance(value, bool):
            request.parameters[name].bool_param = value
        else:
            request.parameters[name].int64_param = value
    for given in inputs:
        request.inputs.add(name=given.name, datatype=given.datatype, shape=given.shape)
        request.raw_input_contents.append(given.data)
    message: bytes = request.SerializeToString()
    return message


def stream_once(server: Server, request: ZeroRequest, *, deadline_s: float) -> None:
    """Send a decoupled model's request and wait for its first answer or its end. Raises EngineError."""
    import grpc
    from tritonclient.grpc import service_pb2

    with grpc.insecure_channel(f"{server.host}:{server.grpc_port}") as channel:
        call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        try:
            answers = call(iter((request.body,)), timeout=deadline_s)
            said = next((answer.error_message for answer in answers), "")
            answers.cancel()
        except grpc.RpcError as error:
            raise EngineError(f"{error.code().name}: {error.details()}") from error
    if said:
        raise EngineError(said)


def plain_client(deadline_s: float) -> httpx.Client:
    """Return an HTTP client without TLS: loading the unneeded certificates takes 19 ms of CPU time."""
    return httpx.Client(timeout=deadline_s, trust_env=False, verify=False)


def prove(server: Server, endpoint: str, *, deadline_s: float) -> None:
    """Run one inference of zeros on `endpoint`. Raises EngineError with the server's message."""
    base = f"http://{server.host}:{server.http_port}/v2/models/{endpoint}"
    failed = f"{server.name}: an inference on {endpoint} failed"
    try:
        with plain_client(deadline_s) as client:
            config = client.get(f"{base}/config")
            config.raise_for_status()
            request = zero_request(endpoint, config.json())
            if request.json_length is None:
                stream_once(server, request, deadline_s=deadline_s)
                return
            headers = {"Inference-Header-Content-Length": str(request.json_length)}
            client.post(f"{base}/infer", content=request.body, headers=headers).raise_for_status()
    except httpx.HTTPStatusError as error:
        raise EngineError(f"{failed}: {error.response.text.strip()[:300]}") from error
    except httpx.HTTPError as error:
        raise EngineError(f"{failed}: {error!r}") from error
    except EngineError as error:
        raise EngineError(f"{failed}: {error}") from error


def unload(server: Server, endpoint: str, *, deadline_s: float) -> None:
    """Unload a model, keeping its server up. Raises EngineError."""
    _repository(server, endpoint, "unload", deadline_s)


def load(server: Server, endpoint: str, *, deadline_s: float) -> None:
    """Load a model that was unloaded. Raises EngineError."""
    _repository(server, endpoint, "load", deadline_s)


def _repository(server: Server, endpoint: str, verb: str, deadline_s: float) -> None:
    url = f"http://{server.host}:{server.http_port}/v2/repository/models/{endpoint}/{verb}"
    key = {} if server.reload_key is None else {RELOAD_HEADER: server.reload_key}
    try:
        with plain_client(deadline_s) as client:
            client.post(url, json={}, headers=key).raise_for_status()
    except httpx.HTTPStatusError as error:
        raise EngineError(f"{server.name}: {verb} {endpoint}: {error.response.text.strip()[:300]}") from error
    except httpx.HTTPError as error:
        raise EngineError(f"{server.name}: {verb} {endpoint}: {error!r}") from error
