"""A model's instances: the groups and kinds that the user wrote, on the one device of a partition.

Of a model one batch executes at a time, since a plan has one queue and one executor for it. Several instances
of one group would only take memory, and form smaller batches, so each group has one. Two kinds need more: a
model with sequences has a place for a sequence in each instance, and groups differ in their kind, profile or
devices. Those take turns, by Triton's rate limiter.
"""

from __future__ import annotations

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from controlplane.domain.device import CPU_DEVICE

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
            _place_on_cpu(group)
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


def _executing(config: ModelConfig) -> list[ModelInstanceGroup]:
    return [group for group in config.instance_group if not group.passive] or [ModelInstanceGroup()]


def _count(group: ModelInstanceGroup, config: ModelConfig) -> int:
    """Return how many instances a group has once it is placed."""
    if not config.HasField("sequence_batching"):
        return 1
    default = 2 if backend_of(config) in _TWO_ON_CPU and group.kind != ModelInstanceGroup.KIND_GPU else 1
    return int(group.count) or default


def _place_on_cpu(group: ModelInstanceGroup) -> None:
    del group.gpus[:]
    if group.kind != ModelInstanceGroup.KIND_MODEL:
        group.kind = ModelInstanceGroup.KIND_CPU
