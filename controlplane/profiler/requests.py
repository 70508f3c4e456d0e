"""A model to measure and its requests, from a file or generated, all checked before a server starts."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelSequenceBatching
from tritonclient.grpc.service_pb2 import ModelInferRequest
from tritonclient.utils import triton_to_np_dtype

from controlplane.domain.device import Device
from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.profile import RequestSet
from controlplane.domain.tensors import SAMPLE_TEXT, Ranges, Sample, Shapes, TensorSpec, TensorValue
from controlplane.files.measurements.input_data import read_sequences
from controlplane.profiler.sweep import Point, chosen_points, fewer_points, in_flight
from controlplane.render.config import batch_limit, input_specs, iterates, keeps_sequences, sample_shapes
from controlplane.render.source import SourceModel, read_source, steps_of
from controlplane.triton.samples import sample_inputs

SEQUENCE = 4_611_686_018_427_387_847
"""The id of the one sequence that is under way."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of one inference each, sent in turn.

    `streamed`: a decoupled model, which answers on a stream, any number of times. `in_sequence`: the requests
    are whole sequences, of which one runs after another, because only one server knows a sequence's state.
    `in_steps`: each request is a sequence by itself, which the model executes step by step.
    `steps`: the models that an ensemble's requests pass, as Triton counts no batches of an ensemble.
    """

    requests: tuple[ModelInferRequest, ...]
    streamed: bool = False
    in_sequence: bool = False
    in_steps: bool = False
    steps: tuple[str, ...] = ()

    def ends(self) -> tuple[bool, ...]:
        """Return after which requests the traffic may end: with the last one of a sequence."""
        whole = not self.in_sequence or self.in_steps
        return tuple(whole or r.parameters["sequence_end"].bool_param for r in self.requests)

    def in_flight(self, batch: int) -> int:
        """Return how many requests keep the server busy with batches of `batch`."""
        return 1 if self.in_sequence else in_flight(batch)


def _mark(sequences: Sequence[Sequence[ModelInferRequest]], config: ModelConfig) -> None:
    """Mark each request as the first or last of its sequence, or as one in between."""
    controls = [c for given in config.sequence_batching.control_input for c in given.control]
    ids = ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID
    as_text = any(c.kind == ids and c.data_type == DataType.TYPE_STRING for c in controls)
    for requests in sequences:
        for request in requests:
            if as_text:
                request.parameters["sequence_id"].string_param = str(SEQUENCE)
            else:
                request.parameters["sequence_id"].int64_param = SEQUENCE
            request.parameters["sequence_start"].bool_param = request is requests[0]
            request.parameters["sequence_end"].bool_param = request is requests[-1]


@dataclass(frozen=True, slots=True)
class Inputs:
    """The user's inputs for one model.

    `data` is a file of real inputs, `shapes` the dimensions of inputs of variable shape, `ranges` those of
    generated values.
    """

    shapes: Shapes = field(default_factory=dict)
    data: Path | None = None
    ranges: Ranges = field(default_factory=dict)


NO_INPUTS = Inputs()
_WITHOUT_RANGE = ("BYTES", "BF16", "BOOL")
_GENERATED_STEPS = 20
"""The length of a generated sequence: perf_analyzer's default."""


def requests_for(source: SourceModel, inputs: Inputs = NO_INPUTS) -> tuple[ModelInferRequest, ...]:
    """Return requests of one inference each; the caller sets `model_name`.

    For a model with sequences they are whole sequences, one after another: those of the file, or one of
    equal requests. Raises InputError for a model without inputs, for missing, wrong or superfluous
    dimensions, and for a bad file.
    """
    file = f"{source.directory}/config.pbtxt"
    specs = input_specs(source.config)
    if not specs:
        raise InputError("lists no input, so no request can be made", file=file, field="input")
    _check_shapes(specs, inputs.shapes, file, source.name)
    _check_ranges(specs, inputs, file, source.name)
    sequences = _sequences(source, specs, inputs, file)
    leading = (1,) if source.config.max_batch_size > 0 else ()
    made = []
    for sequence in sequences:
        requests = []
        for sample in sequence:
            request = ModelInferRequest()
            for tensor in sample:
                shape = (*leading, *tensor.shape)
                request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape)
                request.raw_input_contents.append(tensor.data)
            requests.append(request)
        made.append(requests)
    if keeps_sequences(source.config):
        _mark(made, source.config)
    return tuple(itertools.chain.from_iterable(made))


def _sequences(
    source: SourceModel, specs: Sequence[TensorSpec], inputs: Inputs, file: str
) -> tuple[tuple[Sample, ...], ...]:
    """Return the samples of the file by sequence, or one of the model's own sample or of a generated one."""
    shapes = {**sample_shapes(source.config, file), **inputs.shapes}
    if inputs.data is not None:
        return read_sequences(inputs.data, specs, shapes)
    if source.config.model_warmup and not inputs.shapes and not inputs.ranges:
        config = MessageToDict(source.config, preserving_proto_field_name=True)
        try:
            own = sample_inputs(config, Path(source.directory))
        except EngineError as error:
            raise InputError(str(error), file=file, field="model_warmup") from None
        leading = 1 if source.config.max_batch_size > 0 else 0
        sample = tuple(TensorValue(i.name, i.datatype, i.shape[leading:], i.data) for i in own)
    else:
        sample = _generated(source.name, specs, replace(inputs, shapes=shapes), file)
    return ((_GENERATED_STEPS if keeps_sequences(source.config) else 1) * (sample,),)


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
            "keep entries of one shape, or measure with --set batches=1",
            file=str(inputs.data),
            field="data",
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
                f"{list(shape)} does not fit its dimensions {list(declared[name].dims)}: give a number for "
                "each, without the batch",
                file=file,
                field=f"--shape {model}:{name}",
            )


def _check_ranges(specs: Sequence[TensorSpec], inputs: Inputs, file: str, model: str) -> None:
    declared = {spec.name: spec for spec in specs if spec.datatype not in _WITHOUT_RANGE}
    for name in inputs.ranges:
        field = f"--range {model}:{name}"
        if inputs.data is not None:
            raise InputError("is for generated values, and a file of inputs is given", field=field)
        if name not in declared:
            raise InputError(
                f"there is no input of numbers {name!r}; there are: {', '.join(declared) or 'none'}",
                file=file,
                field=field,
            )


def _generated(model: str, specs: Sequence[TensorSpec], inputs: Inputs, file: str) -> Sample:
    values = []
    for spec in _sent(model, specs, inputs, file):
        shape = inputs.shapes.get(spec.name, spec.dims)
        if any(d < 0 for d in shape):
            hint = ",".join(str(d) if d > 0 else "N" for d in shape)
            raise InputError(
                f"its dimensions {list(shape)} are variable; give the ones to measure: "
                f"--shape {model}:{spec.name}:{hint}, or --input-data {model}:FILE",
                file=file,
                field=spec.name,
            )
        data = _values(spec.datatype, math.prod(shape), inputs.ranges.get(spec.name))
        values.append(TensorValue(spec.name, spec.datatype, shape, data))
    return tuple(values)


def _sent(model: str, specs: Sequence[TensorSpec], inputs: Inputs, file: str) -> Sequence[TensorSpec]:
    """Return the inputs to generate: the required ones; without any, those of a known shape."""
    required = [spec for spec in specs if not spec.optional]
    known = [spec for spec in specs if spec.name in inputs.shapes or not spec.is_open]
    if not required and not known:
        hint = ",".join(str(d) if d > 0 else "N" for d in specs[0].dims)
        raise InputError(
            "all inputs are optional and of variable shape: give the shape of those to send, like "
            f"--shape {model}:{specs[0].name}:{hint}, or --input-data {model}:FILE",
            file=file,
            field="input",
        )
    return required or known


def _values(kind: str, count: int, between: tuple[float, float] | None) -> bytes:
    """Return noise for floats, ones for integers (a valid index and a valid mask), English words for text.

    `between` two numbers, where they are given: evenly distributed, the second one included for integers.
    """
    if kind == "BYTES":
        return (struct.pack("<I", len(SAMPLE_TEXT)) + SAMPLE_TEXT) * count
    if kind == "BF16":
        return b"\x80\x3f" * count
    dtype = np.dtype(triton_to_np_dtype(kind))
    if between is not None:
        drawn = np.random.default_rng(0).uniform(between[0], between[1], count)
        return (drawn if dtype.kind == "f" else drawn.round()).astype(dtype).tobytes()
    if dtype.kind == "f":
        return np.random.default_rng(0).standard_normal(count).astype(dtype).tobytes()
    return np.ones(count, dtype).tobytes()


@dataclass(frozen=True, slots=True)
class Wishes:
    """The user's options. Without `percents` and `batches`, eleven points are measured.

    `budget_s` is the approximate time for a whole model. `inputs` are by model; for the other models,
    requests are generated from the configuration.
    """

    percents: Sequence[float] | None = None
    batches: Sequence[int] | None = None
    budget_s: float = 40.0
    inputs: Mapping[str, Inputs] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to measure. `inputs` is the description of `traffic` for its profile.

    `fewer`: what a slow model is measured at instead of `points`; empty where the user chose the points.
    """

    source: SourceModel
    points: tuple[Point, ...]
    traffic: Traffic
    inputs: RequestSet
    budget_s: float
    fewer: tuple[tuple[Point, ...], ...] = ()


def read_subject(repository: Path, model: str, device: Device, wishes: Wishes) -> Subject:
    """Read a model and the user's inputs for it. Raises InputError if it cannot be measured with them."""
    source = read_source(repository, model)
    largest = batch_limit(source.config)
    points = chosen_points(model, device.grid, largest, wishes.percents, wishes.batches)
    free = wishes.percents is None and wishes.batches is None
    given = wishes.inputs.get(model, NO_INPUTS)
    requests = requests_for(source, given)
    check_batches_form(source, requests, given, max(p.batch for p in points))
    traffic = Traffic(
        requests,
        streamed=source.config.model_transaction_policy.decoupled,
        in_sequence=source.config.HasField("sequence_batching"),
        in_steps=iterates(source.config),
        steps=steps_of(source),
    )
    fewer = fewer_points(device.grid, largest) if free else ()
    return Subject(source, points, traffic, request_set(requests, given), wishes.budget_s, fewer)
