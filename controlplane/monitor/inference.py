"""Real inferences on a running server, which prove that a model answers.

Readiness is no proof: a model whose Python process died still reports that it is ready.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from controlplane.domain.errors import EngineError, server_words
from controlplane.domain.fleet import RELOAD_HEADER, Server
from controlplane.monitor.samples import SampleInput, executed_by, has_sample, sample_inputs

ReadConfig = Callable[[str], Mapping[str, Any]]
"""The configuration of a model by its name, as GET .../config answers."""
_SEQUENCE = 7_236_280_107_668_635_753
"""A random sequence id, which no client has."""
_WAY_OUT = (
    "the input was generated: zeros, and 1 for a variable dimension of which no shape is known; `ctl profile "
    "--shape` on this host gives the shape, `model_warmup` in the model's config.pbtxt a whole input"
)


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A serialized inference of a sample: the body of POST .../infer and the length of its JSON part.

    For a decoupled model, which answers streams only, it is a gRPC message and `json_length` is None.
    """

    body: bytes
    json_length: int | None
    generated: bool
    """Whether the model brought no sample of its own."""


def sample_request(endpoint: str, repository: str, read: ReadConfig) -> SampleRequest:
    """Return a small inference for an endpoint of a server; for sequences, a whole sequence.

    `repository` is the server's. Raises EngineError as `sample_inputs` and `read` do.
    """
    config = read(endpoint)
    model = executed_by(config) or endpoint
    source = config if model == endpoint else read(model)
    alone = {"sequence_id": _SEQUENCE, "sequence_start": True, "sequence_end": True}
    parameters = alone if "sequence_batching" in config else {}
    inputs = sample_inputs(source, Path(repository) / model)
    if config.get("model_transaction_policy", {}).get("decoupled", False):
        return SampleRequest(_message(endpoint, inputs, parameters), None, not has_sample(source))
    return SampleRequest(*infer_body(inputs, parameters), not has_sample(source))


def infer_body(inputs: tuple[SampleInput, ...], parameters: Mapping[str, Any]) -> tuple[bytes, int]:
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


def _message(endpoint: str, inputs: tuple[SampleInput, ...], parameters: Mapping[str, int | bool]) -> bytes:
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


def stream_once(server: Server, request: SampleRequest, *, deadline_s: float) -> None:
    """Send a decoupled model's request and wait for its first answer or its end.

    Raises EngineError, and TimeoutError without an answer in time.
    """
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
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise TimeoutError(f"no answer within {deadline_s:g} s") from error
            raise EngineError(f"{error.code().name}: {error.details()}") from error
    if said:
        raise EngineError(said)


def plain_client(deadline_s: float) -> httpx.Client:
    """Return an HTTP client without TLS: loading the unneeded certificates takes 19 ms of CPU time."""
    return httpx.Client(timeout=deadline_s, trust_env=False, verify=False)


def prove(server: Server, endpoint: str, *, deadline_s: float) -> None:
    """Run one inference on `endpoint`, of `sample_inputs`. Raises EngineError with the server's message."""
    models = f"http://{server.host}:{server.http_port}/v2/models"
    failed = f"{server.name}: an inference on {endpoint} failed"
    try:
        with plain_client(deadline_s) as client:
            request = sample_request(
                endpoint,
                server.spec.repository,
                lambda model: _answered(client.get(f"{models}/{model}/config")).json(),
            )
            if request.json_length is None:
                stream_once(server, request, deadline_s=deadline_s)
                return
            headers = {"Inference-Header-Content-Length": str(request.json_length)}
            answer = client.post(f"{models}/{endpoint}/infer", content=request.body, headers=headers)
            if answer.is_error and request.generated:
                raise EngineError(f"{_words(answer)} ({_WAY_OUT})")
            _answered(answer)
    except (httpx.HTTPError, TimeoutError) as error:
        raise EngineError(f"{failed}: {error!r}") from error
    except EngineError as error:
        raise EngineError(f"{failed}: {error}") from error


def _answered(answer: httpx.Response) -> httpx.Response:
    """Return the answer. Raises EngineError for a refusal."""
    if answer.is_error:
        raise EngineError(_words(answer))
    return answer


def _words(answer: httpx.Response) -> str:
    """Return the message of a refusal."""
    text = answer.text.strip()
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["error"])
    return server_words(text)


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
        raise EngineError(f"{server.name}: {verb} {endpoint}: {_words(error.response)}") from error
    except httpx.TimeoutException as error:
        raise EngineError(
            f"{server.name}: {verb} {endpoint}: no answer within {deadline_s:g} s; if the model's code ends "
            "its own process, Triton waits for ever"
        ) from error
    except httpx.HTTPError as error:
        raise EngineError(f"{server.name}: {verb} {endpoint}: {error!r}") from error
