"""A small inference of a model: its own sample, or zeros.

A model that refuses zeros brings a sample in Triton's way: `model_warmup` in its configuration, whose
`input_data_file` lies in the folder `warmup` beside it. Triton itself executes that sample when it loads the
model.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.tensors import SAMPLE_SHAPE, SAMPLE_TEXT, parsed_dims
from controlplane.files.reading import read_bytes

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
_FOLDER = "warmup"
"""Triton's name for it."""
_SEQUENCE = 7_236_280_107_668_635_753
"""A random sequence id, which no client has."""

ReadConfig = Callable[[str], Mapping[str, Any]]
"""The configuration of a model by its name, as GET .../config answers."""


@dataclass(frozen=True, slots=True)
class SampleInput:
    """One input of a model in KServe's binary layout."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


def sample_inputs(config: Mapping[str, Any], folder: Path) -> tuple[SampleInput, ...]:
    """Return one inference of a model: its first warm-up sample where it has one, else zeros.

    `folder` is the model's in the server's repository. Raises EngineError for an unknown data type, and for a
    file that cannot be read.
    """
    if not (samples := config.get("model_warmup")):
        return _zero_inputs(config)
    found = []
    for name, tensor in samples[0]["inputs"].items():
        data = None  # zeros, or random
        if file := tensor.get("input_data_file"):
            try:
                data = read_bytes(folder / _FOLDER / file)
            except InputError as error:
                raise EngineError(str(error)) from error
        found.append(_input(name, tensor, config, data))
    return tuple(found)


def _zero_inputs(config: Mapping[str, Any]) -> tuple[SampleInput, ...]:
    """Return zeros, or texts, for every input that a model's configuration requires.

    Without any, for those of a known shape, since a batch's size is the first dimension of an input.
    A variable dimension counts as 1 where the configuration has no `sample_shape` of the input.
    """
    inputs = config.get("input", [])
    required = [tensor for tensor in inputs if not tensor.get("optional")]
    known = (tensor for tensor in inputs if all(int(d) > 0 for d in _dims(tensor, config)))
    return tuple(
        _input(tensor["name"], {**tensor, "dims": _dims(tensor, config)}, config, None)
        for tensor in required or known
    )


def _dims(tensor: Mapping[str, Any], config: Mapping[str, Any]) -> Sequence[int]:
    parameter = config.get("parameters", {}).get(SAMPLE_SHAPE + tensor["name"], {})
    return parsed_dims(str(parameter.get("string_value", ""))) or tensor["dims"]


def _input(
    name: str, tensor: Mapping[str, Any], config: Mapping[str, Any], data: bytes | None
) -> SampleInput:
    dims = tuple(max(1, int(d)) for d in tensor["dims"])
    shape = (1, *dims) if int(config.get("max_batch_size", 0)) > 0 else dims
    kind = tensor["data_type"]
    if kind == "TYPE_STRING":
        return SampleInput(name, "BYTES", shape, _TEXT * prod(shape) if data is None else data)
    if kind not in _BYTES_OF:
        raise EngineError(f"input {name}: no zero is known for {kind}")
    zeros = bytes(_BYTES_OF[kind] * prod(shape))
    return SampleInput(name, kind.removeprefix("TYPE_"), shape, zeros if data is None else data)


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A serialized inference of a sample: the body of POST .../infer and the length of its JSON part.

    For a decoupled model, which answers streams only, it is a gRPC message and `json_length` is None.
    """

    body: bytes
    json_length: int | None
    generated: bool
    """Whether the model brought no sample of its own."""
    models: tuple[str, ...]
    """What executes: the endpoint, and of an ensemble its steps and theirs."""


def sample_request(endpoint: str, repository: str, read: ReadConfig) -> SampleRequest:
    """Return a small inference for an endpoint of a server; for sequences, a whole sequence.

    `repository` is the server's. Raises EngineError as `sample_inputs` and `read` do.
    """
    config = read(endpoint)
    model, source = endpoint, config
    steps = config.get("ensemble_scheduling", {}).get("step", [])
    renamed = any(key != value for step in steps for key, value in step.get("input_map", {}).items())
    if len(steps) == 1 and not renamed:
        # An alias has its model's inputs, and Triton allows an ensemble no sample.
        model = str(steps[0]["model_name"])
        source = read(model)
    sequences = config.get("sequence_batching", {"iterative_sequence": True})
    parameters: dict[str, Any] = {}
    if not sequences.get("iterative_sequence"):
        named = str(_SEQUENCE) if _has_text_ids(sequences) else _SEQUENCE
        parameters = {"sequence_id": named, "sequence_start": True, "sequence_end": True}
    inputs = sample_inputs(source, Path(repository) / model)
    generated, models = not source.get("model_warmup"), _executing(endpoint, config, read)
    if config.get("model_transaction_policy", {}).get("decoupled", False):
        return SampleRequest(_message(endpoint, inputs, parameters), None, generated, models)
    return SampleRequest(*_body(inputs, parameters), generated, models)


def _has_text_ids(sequences: Mapping[str, Any]) -> bool:
    controls = [c for given in sequences.get("control_input", ()) for c in given.get("control", ())]
    ids = (c for c in controls if c.get("kind") == "CONTROL_SEQUENCE_CORRID")
    return any(c.get("data_type") == "TYPE_STRING" for c in ids)


def _executing(endpoint: str, config: Mapping[str, Any], read: ReadConfig) -> tuple[str, ...]:
    found = {endpoint: None}
    for step in config.get("ensemble_scheduling", {}).get("step", []):
        model = str(step["model_name"])
        found.update(dict.fromkeys(_executing(model, read(model), read)))
    return tuple(found)


def _body(inputs: tuple[SampleInput, ...], parameters: Mapping[str, Any]) -> tuple[bytes, int]:
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


def _message(endpoint: str, inputs: tuple[SampleInput, ...], parameters: Mapping[str, Any]) -> bytes:
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=endpoint)
    for name, value in parameters.items():
        if isinstance(value, bool):
            request.parameters[name].bool_param = value
        elif isinstance(value, str):
            request.parameters[name].string_param = value
        else:
            request.parameters[name].int64_param = value
    for given in inputs:
        request.inputs.add(name=given.name, datatype=given.datatype, shape=given.shape)
        request.raw_input_contents.append(given.data)
    message: bytes = request.SerializeToString()
    return message
