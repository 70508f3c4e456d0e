"""Aliases: further endpoints of a model that share its queue, as ensembles of one step.

Triton makes a queue and a batcher for each model that it loads, so copies of a model would not share one. An
alias has the model's own interface: inputs, outputs, labels, versions, batch, decoupled or not.
"""

from __future__ import annotations

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from controlplane.domain.errors import InputError
from controlplane.files.pinned import CONFIG_NAME
from controlplane.render.config import HEADER, keeps_sequences
from controlplane.render.source import SourceModel

_SHOWN = (
    "version_policy",
    "max_batch_size",
    "input",
    "output",
    "parameters",
    "metric_tags",
    "model_transaction_policy",
)
"""The fields of the interface, which an alias copies; those of the execution stay with the model."""

_LATEST = -1


def alias_config(source: SourceModel, *, endpoint: str, of: str) -> str:
    """Return the config.pbtxt of the alias `endpoint`, which executes on the model named `of`."""
    config = ModelConfig()
    config.CopyFrom(source.config)
    for field, _ in source.config.ListFields():
        if field.name not in _SHOWN:
            config.ClearField(field.name)
    config.name, config.platform = endpoint, "ensemble"
    step = config.ensemble_scheduling.step.add(model_name=of, model_version=_LATEST)
    for tensor in config.input:
        # An ensemble has the shapes that clients send; its step reshapes them.
        tensor.ClearField("reshape")
        step.input_map[tensor.name] = tensor.name
    for tensor in config.output:
        tensor.ClearField("reshape")
        step.output_map[tensor.name] = tensor.name
    text: str = text_format.MessageToString(config)
    return HEADER + text


def check_shareable(source: SourceModel, workloads: tuple[str, ...]) -> None:
    """Raise InputError, with reason and way out, if these workloads cannot share the model's queue."""
    config = source.config
    if keeps_sequences(config):
        field, reason, cure = "sequence_batching", "each one has sequences of its own", ""
    elif not config.input or not config.output:
        field, reason, cure = "input", "an alias has to name inputs and outputs", "write them down here, or "
    elif any(t.is_shape_tensor or t.is_non_linear_format_io for t in (*config.input, *config.output)):
        field, reason, cure = "input", "an alias cannot pass on tensors in TensorRT's own layouts", ""
    elif _versions_served(source) > 1:
        field, reason, cure = "version_policy", "an alias leads to one version", "serve one only, or "
    else:
        return
    raise InputError(
        f"workloads {', '.join(workloads[:-1])} and {workloads[-1]} cannot share one queue of model "
        f"{source.name!r}: {reason}; {cure}write `isolated: true` at each of them in the spec, and plan "
        "again",
        file=f"{source.directory}/{CONFIG_NAME}",
        field=field,
    )


def _versions_served(source: SourceModel) -> int:
    present = sum(name.isdigit() for name in source.others)
    policy = source.config.version_policy
    match policy.WhichOneof("policy_choice"):
        case "all":
            return present
        case "specific":
            return len(set(policy.specific.versions))
        case _:
            return min(present, policy.latest.num_versions or 1)
