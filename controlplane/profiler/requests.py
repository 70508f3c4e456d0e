"""The requests for a model's measurement: from a file, or generated from its configuration."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
from tritonclient.grpc.model_config_pb2 import DataType
from tritonclient.grpc.service_pb2 import ModelInferRequest
from tritonclient.utils import triton_to_np_dtype

from controlplane.domain.errors import InputError
from controlplane.domain.profile import RequestSet
from controlplane.domain.tensors import SAMPLE_TEXT, Sample, Shapes, TensorSpec, TensorValue
from controlplane.files.measurements.input_data import read_samples
from controlplane.render.config import keeps_sequences
from controlplane.render.source import SourceModel


@dataclass(frozen=True, slots=True)
class Inputs:
    """The user's inputs for one model: a file of real inputs, and dimensions of inputs of variable shape."""

    shapes: Shapes = field(default_factory=dict)
    data: Path | None = None


NO_INPUTS = Inputs()


def requests_for(source: SourceModel, inputs: Inputs = NO_INPUTS) -> tuple[ModelInferRequest, ...]:
    """Return requests of one inference each; the caller sets `model_name`.

    Raises InputError for a model with sequences or without inputs, for missing, wrong or superfluous
    dimensions, and for a bad file.
    """
    file = f"{source.directory}/config.pbtxt"
    if keeps_sequences(source.config):
        raise InputError(
            "keeps state between requests (sequence_batching), and `ctl profile` sends independent requests; "
            "measure a copy without sequence_batching and give its profile this model's name",
            file=file,
            field="sequence_batching",
        )
    specs = input_specs(source)
    if all(spec.optional for spec in specs):
        raise InputError("lists no input, so no request can be made", file=file, field="input")
    _check_shapes(specs, inputs.shapes, file, source.name)
    if inputs.data is not None:
        samples = read_samples(inputs.data, specs, inputs.shapes)
    else:
        samples = (_generated(source.name, specs, inputs.shapes, file),)
    batched = source.config.max_batch_size > 0
    return tuple(_request(sample, batched=batched) for sample in samples)


def request_set(requests: Sequence[ModelInferRequest], inputs: Inputs) -> RequestSet:
    """Return the description of the requests that a profile stores."""
    digest = sha256()
    for request in requests:
        body = request.SerializeToString(deterministic=True)
        digest.update(len(body).to_bytes(8, "little") + body)
    file = None if inputs.data is None else str(inputs.data)
    return RequestSet(file=file, requests=len(requests), sha256=digest.hexdigest())


def request_of(samples: Sequence[ModelInferRequest], inferences: int) -> ModelInferRequest:
    """Return one request of several inferences, from requests of one inference each, taken in turn.

    The requests have one shape; the caller sets `model_name`.
    """
    taken = [samples[i % len(samples)] for i in range(inferences)]
    request = ModelInferRequest()
    request.CopyFrom(taken[0])
    for i, tensor in enumerate(request.inputs):
        tensor.shape[0] = inferences
        request.raw_input_contents[i] = b"".join(sample.raw_input_contents[i] for sample in taken)
    return request


def check_batches_form(
    source: SourceModel, requests: Sequence[ModelInferRequest], inputs: Inputs, largest_batch: int
) -> None:
    """Raise InputError for requests of several shapes, from which Triton forms no batch."""
    ragged = {tensor.name for tensor in source.config.input if tensor.allow_ragged_batch}
    shapes = [{t.name: list(t.shape) for t in r.inputs if t.name not in ragged} for r in requests]
    other = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
    if largest_batch > 1 and other is not None:
        raise InputError(
            f"entry {other} and entry 0 differ in shapes, and Triton batches requests of one shape only; "
            "keep entries of one shape, or measure with --batches 1",
            file=str(inputs.data),
            field="data",
        )


def input_specs(source: SourceModel) -> tuple[TensorSpec, ...]:
    """Return the declared inputs of a model."""
    return tuple(
        TensorSpec(
            name=tensor.name,
            datatype=DataType.Name(tensor.data_type).removeprefix("TYPE_").replace("STRING", "BYTES"),
            dims=tuple(tensor.dims),
            optional=tensor.optional,
        )
        for tensor in source.config.input
    )


def _check_shapes(specs: Sequence[TensorSpec], shapes: Shapes, file: str, model: str) -> None:
    declared = {spec.name: spec for spec in specs}
    for name, shape in shapes.items():
        if name not in declared:
            raise InputError(
                f"there is no input {name!r}; there are: {', '.join(declared)}", file=file, field="--shape"
            )
        if not declared[name].takes(shape):
            raise InputError(
                f"{list(shape)} does not fit its dimensions {list(declared[name].dims)}",
                file=file,
                field=f"--shape {model}:{name}",
            )


def _generated(model: str, specs: Sequence[TensorSpec], shapes: Shapes, file: str) -> Sample:
    values = []
    for spec in specs:
        if spec.optional:
            continue
        shape = shapes.get(spec.name, spec.dims)
        if any(d < 0 for d in shape):
            hint = ",".join(str(d) if d > 0 else "N" for d in shape)
            raise InputError(
                f"its dimensions {list(shape)} are variable; give the ones to measure: "
                f"--shape {model}:{spec.name}:{hint}, or --input-data {model}:FILE",
                file=file,
                field=spec.name,
            )
        values.append(TensorValue(spec.name, spec.datatype, shape, _values(spec.datatype, math.prod(shape))))
    return tuple(values)


def _request(sample: Sample, *, batched: bool) -> ModelInferRequest:
    request = ModelInferRequest()
    for tensor in sample:
        shape = [1, *tensor.shape] if batched else list(tensor.shape)
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape)
        request.raw_input_contents.append(tensor.data)
    return request


def _values(kind: str, count: int) -> bytes:
    """Return noise for floats, ones for integers (a valid index and a valid mask), English words for text."""
    if kind == "BYTES":
        return (struct.pack("<I", len(SAMPLE_TEXT)) + SAMPLE_TEXT) * count
    if kind == "BF16":
        return b"\x80\x3f" * count
    dtype = np.dtype(triton_to_np_dtype(kind))
    if dtype.kind == "f":
        return np.random.default_rng(0).standard_normal(count).astype(dtype).tobytes()
    return np.ones(count, dtype).tobytes()
