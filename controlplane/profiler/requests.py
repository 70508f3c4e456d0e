"""An inference request for any model, made from its configuration alone."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

import numpy as np
from tritonclient.grpc.model_config_pb2 import DataType, ModelInput
from tritonclient.grpc.service_pb2 import ModelInferRequest
from tritonclient.utils import triton_to_np_dtype

from controlplane.domain.errors import InputError
from controlplane.render.config import keeps_sequences
from controlplane.render.source import SourceModel

Shapes = Mapping[str, tuple[int, ...]]
"""Input -> its dimensions without the batch's, where the configuration leaves them open."""


def example_request(source: SourceModel, shapes: Shapes) -> ModelInferRequest:
    """A request of one inference with plausible values; `model_name` is left for the caller to set.

    Raises InputError for a model with sequences, and for dimensions that are open and not given, given and
    wrong, or given for no input.
    """
    file = f"{source.directory}/config.pbtxt"
    if keeps_sequences(source.config):
        raise InputError(
            "keeps state between requests (sequence_batching), and what is measured are requests by "
            "themselves; measure a copy without sequence_batching and give its profile this model's name",
            file=file,
            field="sequence_batching",
        )
    wanted = [tensor for tensor in source.config.input if not tensor.optional]
    for name in shapes:
        if name not in {tensor.name for tensor in source.config.input}:
            names = ", ".join(tensor.name for tensor in source.config.input)
            raise InputError(f"there is no input {name!r}; there are: {names}", file=file, field="--shape")
    if not wanted:
        raise InputError("lists no input, so no request can be made", file=file, field="input")
    request = ModelInferRequest()
    for tensor in wanted:
        dims = _dims(tensor, shapes.get(tensor.name), file)
        kind = DataType.Name(tensor.data_type).removeprefix("TYPE_").replace("STRING", "BYTES")
        shape = [1, *dims] if source.config.max_batch_size > 0 else dims
        request.inputs.add(name=tensor.name, datatype=kind, shape=shape)
        request.raw_input_contents.append(_values(kind, math.prod(dims)))
    return request


def _dims(tensor: ModelInput, given: tuple[int, ...] | None, file: str) -> list[int]:
    declared = list(tensor.dims)
    if given is None:
        if any(d < 0 for d in declared):
            hint = ",".join(str(d) if d > 0 else "N" for d in declared)
            raise InputError(
                f"its dimensions {declared} are open; say what to measure: --shape {tensor.name}:{hint}",
                file=file,
                field=tensor.name,
            )
        return declared
    fits = len(given) == len(declared) and all(d < 0 or d == g for d, g in zip(declared, given, strict=True))
    if not fits or any(g < 1 for g in given):
        raise InputError(
            f"{list(given)} does not fit its dimensions {declared}", file=file, field=f"--shape {tensor.name}"
        )
    return list(given)


def _values(kind: str, count: int) -> bytes:
    """Noise for floats; ones for integers, which are a valid index and a valid mask; empty texts."""
    if kind == "BYTES":
        return struct.pack("<I", 0) * count
    if kind == "BF16":
        return b"\x80\x3f" * count
    dtype = np.dtype(triton_to_np_dtype(kind))
    if dtype.kind == "f":
        return np.random.default_rng(0).standard_normal(count).astype(dtype).tobytes()
    return np.ones(count, dtype).tobytes()
