"""Rendering of config.pbtxt: a source model's configuration with the plan's values, otherwise unchanged.

Of a model one batch executes at a time, since a plan has one queue and one executor for it. Several instances
of one group would only take memory, and form smaller batches, so each group has one. Two kinds need more: a
model with sequences has a place for a sequence in each instance, and groups differ in their kind, profile or
devices. Those take turns, by Triton's rate limiter.
"""

from __future__ import annotations

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup, ModelQueuePolicy

from controlplane.domain.device import CPU_DEVICE
from controlplane.domain.errors import InputError
from controlplane.domain.plan import ServedModel
from controlplane.domain.tensors import SAMPLE_SHAPE, Shapes, TensorSpec, parsed_dims
from controlplane.domain.units import MICROS_PER_MILLI

TURN = "turn"
"""The resource of Triton's rate limiter that every execution takes where instances or models take turns."""

_BACKEND_OF = {
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
    "tensorrt_plan": "tensorrt",
}
"""The backends that Triton takes for the platforms of older configurations."""
_TWO_ON_CPU = frozenset({"onnxruntime", "tensorflow"})
"""Backends of which Triton makes two instances on a CPU where no count is written."""
_ON_CPU = frozenset({"openvino"})
"""Backends that run on the CPU where no kind is written, also beside a GPU."""


def backend_of(config: ModelConfig) -> str | None:
    """Return the name of the backend that executes a model; None for an ensemble and where it is unknown."""
    return config.backend or _BACKEND_OF.get(config.platform)


def take_turns(config: ModelConfig) -> bool:
    """Return whether the model has several instances that execute, of which one does at a time."""
    return sum(_count(group, config) for group in _executing(config)) > 1


def place_instances(config: ModelConfig, *, count: int, gpu_type: str, turns: bool) -> None:
    """Write the groups for the one device that a partition's server sees; `count` is the plan's.

    Without a group the backend's own default holds, except where a core or a turn has to be named.
    """
    if not config.instance_group and (gpu_type == CPU_DEVICE or turns):
        only = config.instance_group.add(name=config.name)  # as Triton calls it, also in errors of its code
        if backend_of(config) in _ON_CPU:
            only.kind = ModelInstanceGroup.KIND_CPU
    for group in config.instance_group:
        if gpu_type == CPU_DEVICE:
            del group.gpus[:]
            if group.kind != ModelInstanceGroup.KIND_MODEL:
                group.kind = ModelInstanceGroup.KIND_CPU
        elif group.kind == ModelInstanceGroup.KIND_GPU or group.gpus:
            del group.gpus[:]
            group.gpus.append(0)
        if not config.HasField("sequence_batching"):
            group.count = count
        if turns and not group.passive:
            group.rate_limiter.Clear()
            group.rate_limiter.resources.add(name=TURN, count=1)


def instances_note(config: ModelConfig, *, on_gpu: bool) -> str:
    """Return what a user has to know of a model's instances; empty where they run as written.

    `on_gpu`: it is planned on GPUs.
    """
    written = sum(_count(group, config) for group in _executing(config))
    notes = []
    if config.HasField("sequence_batching") and written > 1:
        notes.append(f"its {written} instances take turns: one executes at a time")
    elif any(group.count > 1 for group in config.instance_group):
        notes.append(
            "one instance of each group is served instead of several: a plan executes one batch at a time"
        )
    cpu = ModelInstanceGroup.KIND_CPU
    if on_gpu and all(group.kind == cpu for group in _executing(config)):
        notes.append("runs on the CPU (KIND_CPU)")
    return "; ".join(notes)


def stubs_on_gpu(config: ModelConfig) -> int:
    """Return how many processes that may use a GPU execute a model, one for each Python instance there."""
    if backend_of(config) != "python":
        return 0
    groups = config.instance_group or [ModelInstanceGroup()]
    return sum(_count(group, config) for group in groups if group.kind != ModelInstanceGroup.KIND_CPU)


def _executing(config: ModelConfig) -> list[ModelInstanceGroup]:
    return [group for group in config.instance_group if not group.passive] or [ModelInstanceGroup()]


def _count(group: ModelInstanceGroup, config: ModelConfig) -> int:
    """Return how many instances a group has once it is placed."""
    if not config.HasField("sequence_batching"):
        return 1
    default = 2 if backend_of(config) in _TWO_ON_CPU and group.kind != ModelInstanceGroup.KIND_GPU else 1
    return int(group.count) or default


BATCH_LIMIT = 32
"""The largest dynamic batch of any plan: TensorRT engines are commonly built for it."""

HEADER = "# Written by ctl. Edit the source model instead: this file is replaced.\n"
"""The first line of each file."""


def parse_config(text: str, file: str) -> ModelConfig:
    """Parse a config.pbtxt. Raises InputError with the line of the first mistake."""
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        # The text begins with line:column, which the InputError has already.
        reason = str(error).split(" : ", 1)[-1]
        if "surrogates not allowed" in reason:
            reason = "a text in it is not UTF-8"
        raise InputError(
            f"is not a model configuration: {reason}", file=file, line=error.GetLine() or None
        ) from None


def is_ensemble(config: ModelConfig) -> bool:
    """Return whether the model consists of steps, which other models execute."""
    return bool(config.platform == "ensemble" or config.HasField("ensemble_scheduling"))


def batch_limit(config: ModelConfig) -> int:
    """Return the largest batch of this model in a plan.

    1 for a model without batching, and for one with sequences: Triton batches those of them that happen to
    have a request at the same time, on which a plan cannot count.
    """
    if config.HasField("sequence_batching"):
        return 1
    return max(1, min(BATCH_LIMIT, int(config.max_batch_size)))


def input_specs(config: ModelConfig) -> tuple[TensorSpec, ...]:
    """Return the declared inputs of a model."""
    return tuple(
        TensorSpec(
            name=tensor.name,
            datatype=DataType.Name(tensor.data_type).removeprefix("TYPE_").replace("STRING", "BYTES"),
            dims=tuple(tensor.dims),
            optional=tensor.optional,
        )
        for tensor in config.input
    )


def is_complete(config: ModelConfig) -> bool:
    """Return whether a configuration names what executes it, its inputs and its outputs.

    Triton completes what is missing there when it loads the model, for backends that know their models.
    """
    return bool((config.backend or config.platform) and config.input and config.output)


def completed_config(written: ModelConfig | None, completed: ModelConfig) -> str:
    """Return the text of Triton's completed configuration.

    The instances stay as written: Triton's default is one on each GPU that its server saw.
    """
    config = ModelConfig()
    config.CopyFrom(completed)
    del config.instance_group[:]
    if written is not None:
        config.instance_group.extend(written.instance_group)
    return str(text_format.MessageToString(config))


_OWN_SCHEDULERS = frozenset({"vllm", "tensorrtllm"})
"""Backends that batch the steps of their requests anew for every token, so that a batch has no time."""


def check_servable(config: ModelConfig, file: str) -> None:
    """Raise InputError, with the reason, for a model that cannot run on a share of one device."""
    if config.backend in _OWN_SCHEDULERS:
        raise InputError(
            f"runs on the backend {config.backend}, which schedules its requests itself: a plan cannot "
            "predict their latencies; serve the model on a GPU without Trisect",
            file=file,
            field="backend",
        )
    named = {gpu for group in config.instance_group for gpu in group.gpus}
    listed = config.parameters["gpu_device_ids"].string_value if "gpu_device_ids" in config.parameters else ""
    if len(named) > 1 or "," in listed:
        raise InputError(
            "runs on several GPUs, and a partition is a share of one; leave the GPUs out of the source "
            "configuration if one is enough",
            file=file,
            field="instance_group.gpus" if len(named) > 1 else "parameters.gpu_device_ids",
        )


def keeps_sequences(config: ModelConfig) -> bool:
    """Return whether the model keeps state between requests, so that a sequence needs the same server."""
    return bool(config.HasField("sequence_batching")) and not iterates(config)


def iterates(config: ModelConfig) -> bool:
    """Return whether the model executes one request several times, by itself a sequence."""
    return bool(config.sequence_batching.iterative_sequence)


def takes_live_batch(config: ModelConfig, served: ServedModel) -> bool:
    """Return whether the batch of a model can change while it serves.

    The batch library counts what is in a batch only where requests do not wait for one to fill, and where the
    first dimension of every input is the batch, which that of a shape tensor is not. A library of the user's
    stays.
    """
    shapes = any(tensor.is_shape_tensor for tensor in config.input)
    plain = not config.HasField("sequence_batching") and not is_ensemble(config) and batch_limit(config) > 1
    return plain and not shapes and served.max_queue_delay_us == 0 and _OWN_LIBRARY not in config.parameters


_OWN_LIBRARY = "TRITON_BATCH_STRATEGY_PATH"


def served_config(
    source: ModelConfig,
    *,
    endpoint: str,
    served: ServedModel,
    gpu_type: str,
    turns: bool = False,
    live: bool = False,
    drop_after_ms: float | None = None,
) -> str:
    """Return the config.pbtxt that serves `source` as `endpoint` with the plan's batch and instances.

    With a queue delay of 0 the one preferred size limits the dynamic batch but accepts a larger request, so
    max_batch_size stays as in the source. The sequence batcher of a model is not changed. `turns`: of all
    instances of the server one executes at a time. `live`: the batch changes while it serves, so that the
    preferred size is the largest that any plan may choose. `drop_after_ms`: a request that has waited so long
    in the model's queue is refused (`check_drop`). An ensemble executes nothing, and only gets its name.
    """
    config = ModelConfig()
    config.CopyFrom(source)
    config.name = endpoint
    if drop_after_ms is not None:
        # A client may ask for less. Other limits of the queue stay.
        policy = config.dynamic_batching.default_queue_policy
        if not policy.default_timeout_microseconds:
            policy.allow_timeout_override = True
        policy.default_timeout_microseconds = _drop_us(drop_after_ms)
    if not is_ensemble(source):
        _set_batching(config, served, live=live)
        place_instances(config, count=served.instances, gpu_type=gpu_type, turns=turns)
    return HEADER + str(text_format.MessageToString(config))


def _set_batching(config: ModelConfig, served: ServedModel, *, live: bool) -> None:
    """Set the plan's batch. A model without batching keeps its queue's limits, deadlines and priorities."""
    if config.HasField("sequence_batching") or config.max_batch_size < 1:
        return
    batching = config.dynamic_batching
    del batching.preferred_batch_size[:]
    largest = batch_limit(config)
    batching.preferred_batch_size.append(largest if live else min(served.batch, largest))
    batching.max_queue_delay_microseconds = served.max_queue_delay_us


def check_drop(config: ModelConfig, drop_after_ms: float, file: str) -> None:
    """Raise InputError for a model without a queue whose requests are refused after a time in it.

    So is one whose source says otherwise: it would be changed in silence, or not hold for each request.
    """
    if config.HasField("sequence_batching") or is_ensemble(config):
        kind = "an ensemble" if is_ensemble(config) else "a model with sequences"
        raise InputError(
            f"{config.name!r} is {kind}, whose requests Triton cannot refuse after a time in the queue: "
            "leave out its workload's drop_after_ms in the spec, and plan again",
            field="drop_after_ms",
        )
    batching = config.dynamic_batching
    policy, default = batching.default_queue_policy, "default_queue_policy"
    own_us = policy.default_timeout_microseconds
    if batching.priority_queue_policy:
        field, reason = "priority_queue_policy", "priorities have queue policies of their own"
    elif policy.timeout_action != ModelQueuePolicy.REJECT:
        field, reason = f"{default}.timeout_action", "what waits too long is delayed, not refused"
    elif own_us not in (0, _drop_us(drop_after_ms)):
        field, reason = f"{default}.default_timeout_microseconds", f"it refuses after {own_us} us"
    else:
        return
    raise InputError(
        f"contradicts drop_after_ms of the model's workload, {drop_after_ms:g} ms: {reason}; remove this "
        "here, or leave out drop_after_ms in the spec, and plan again",
        file=file,
        field=f"dynamic_batching.{field}",
    )


def _drop_us(drop_after_ms: float) -> int:
    return max(1, round(drop_after_ms * MICROS_PER_MILLI))


def measured_config(source: ModelConfig) -> ModelConfig:
    """Return what is measured of a model.

    Requests wait longer than in service, and all are equal: its queue would refuse them, and its response
    cache answer them.
    """
    config = ModelConfig()
    config.CopyFrom(source)
    config.ClearField("response_cache")
    if config.HasField("dynamic_batching"):
        config.dynamic_batching.ClearField("default_queue_policy")
        config.dynamic_batching.ClearField("priority_queue_policy")
    return config


def sample_shapes(config: ModelConfig, file: str) -> Shapes:
    """Return the shapes of samples that a configuration has as parameters, by input.

        parameters { key: "sample_shape.IMAGE" value { string_value: "3,48,320" } }

    Triton passes parameters on without a meaning of its own, so that a server's test inference needs no file
    beside the configuration. A user may write them; without them, those that `ctl profile` measured with
    count.
    Raises InputError, naming the parameter, for one that is no shape or does not fit its input.
    """
    found = {}
    for spec in input_specs(config):
        key = SAMPLE_SHAPE + spec.name
        if key not in config.parameters:
            continue
        text = config.parameters[key].string_value
        shape = parsed_dims(text)
        if shape is None or not spec.takes(shape):
            raise InputError(
                f"{text!r} does not fit the dimensions {list(spec.dims)} of input {spec.name!r}; write "
                "positive numbers without the batch, like 3,48,320",
                file=file,
                field=f"parameters.{key}",
            )
        found[spec.name] = shape
    return found


def with_sample_shapes(config: ModelConfig, shapes: Shapes) -> ModelConfig:
    """Return the configuration with shapes for those of its variable inputs that have none and take them."""
    wanted = ModelConfig()
    wanted.CopyFrom(config)
    for spec in input_specs(config):
        shape, key = shapes.get(spec.name), SAMPLE_SHAPE + spec.name
        if shape is not None and spec.is_open and spec.takes(shape) and key not in config.parameters:
            wanted.parameters[key].string_value = ",".join(map(str, shape))
    return wanted
