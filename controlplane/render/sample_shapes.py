"""The shape of a sample for inputs of variable shape, as parameters of a model's configuration.

    parameters { key: "sample_shape.IMAGE" value { string_value: "3,48,320" } }

Triton passes parameters on without a meaning of its own, so that a server's test inference needs no file
beside the configuration. A user may write them; without them, those that `ctl profile` measured with count.
"""

from __future__ import annotations

from tritonclient.grpc.model_config_pb2 import ModelConfig

from controlplane.domain.errors import InputError
from controlplane.domain.tensors import SAMPLE_SHAPE, Shapes, TensorSpec, parsed_dims
from controlplane.render.config import input_specs


def sample_shapes(config: ModelConfig, file: str) -> Shapes:
    """Return the shapes in a configuration by input.

    Raises InputError, naming the parameter, for one that is no shape or does not fit its input.
    """
    return {spec.name: _shape(config, spec, file) for spec in input_specs(config) if _has(config, spec)}


def with_sample_shapes(config: ModelConfig, shapes: Shapes) -> ModelConfig:
    """Return the configuration with shapes for those of its variable inputs that have none and take them."""
    wanted = ModelConfig()
    wanted.CopyFrom(config)
    for spec in input_specs(config):
        shape = shapes.get(spec.name)
        if shape is not None and spec.is_open and spec.takes(shape) and not _has(config, spec):
            wanted.parameters[SAMPLE_SHAPE + spec.name].string_value = ",".join(map(str, shape))
    return wanted


def _has(config: ModelConfig, spec: TensorSpec) -> bool:
    return SAMPLE_SHAPE + spec.name in config.parameters


def _shape(config: ModelConfig, spec: TensorSpec, file: str) -> tuple[int, ...]:
    key = SAMPLE_SHAPE + spec.name
    text = config.parameters[key].string_value
    shape = parsed_dims(text)
    if shape is None or not spec.takes(shape):
        raise InputError(
            f"{text!r} does not fit the dimensions {list(spec.dims)} of input {spec.name!r}; write positive "
            "numbers without the batch, like 3,48,320",
            file=file,
            field=f"parameters.{key}",
        )
    return shape
