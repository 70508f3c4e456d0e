"""Rendering of a partition's model repository: configurations, and links to the models' files.

Workloads of one model share one queue: the first endpoint is the model, the others are aliases of it,
ensembles of one step. Triton makes a queue and a batcher for each model that it loads, so copies of a model
would not share one. An alias has the model's own interface: inputs, outputs, labels, versions, batch,
decoupled or not. A partition's shadow reads the same repository.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path, PurePosixPath

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from controlplane.domain import units
from controlplane.domain.errors import InputError
from controlplane.domain.fleet import BATCH_LIBRARY, Batches
from controlplane.domain.plan import Partition, Plan, ServedModel
from controlplane.files.pinned import CONFIG_NAME
from controlplane.files.rendered import Link, Tree
from controlplane.render.config import (
    HEADER,
    batch_limit,
    check_drop,
    is_ensemble,
    keeps_sequences,
    measured_config,
    served_config,
    take_turns,
    takes_live_batch,
)
from controlplane.render.source import SourceModel, read_source

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


@dataclass(frozen=True, slots=True)
class _Served:
    """What the models of one server have in common; `library`: that by which their batches change."""

    gpu_type: str
    turns: bool
    library: str | None = None


def render_partition(partition: Partition, *, gpu_type: str, repository: Path) -> Tree:
    """Return one partition's repository, with the models of `repository`.

    Raises InputError as `read_source` and `partition_tree` do.
    """
    return partition_tree(partition, gpu_type=gpu_type, sources=partition_sources(partition, repository))


def partition_sources(partition: Partition, repository: Path) -> dict[str, SourceModel]:
    """Return the source models of a partition by name. Raises InputError as `read_source` does."""
    models = {placement.model for placement in partition.workloads}
    return {model: read_source(repository, model) for model in sorted(models)}


def takes_turns(partition: Partition, sources: Mapping[str, SourceModel]) -> bool:
    """Return whether the partition's server executes one batch at a time.

    It has to where it serves several models, or one that takes turns itself.
    """
    return partition.turns or any(in_turn(source) for source in sources.values())


def in_turn(source: SourceModel) -> bool:
    """Return whether the steps of an ensemble, or several instances of a model, execute one at a time.

    They share one quota: what overlaps delays each other by as much, and the batch that arrived first ends
    later. Not where a step answers several times: its first answer would wait for its last.
    """
    decoupled = source.config.model_transaction_policy.decoupled
    return (is_ensemble(source.config) and not decoupled) or take_turns(source.config)


def refuse_pooled_sequences(plan: Plan, repository: Path) -> None:
    """Raise InputError for a pool whose model has sequences: a sequence's state is in one server only."""
    partitions: dict[str, list[str]] = {}
    models = {}
    for _, partition, placement in plan.placements():
        partitions.setdefault(placement.name, []).append(partition.id)
        models[placement.name] = placement.model
    for workload, pool in partitions.items():
        if len(pool) > 1 and keeps_sequences(read_source(repository, models[workload]).config):
            raise InputError(
                f"workload {workload!r} is served by a pool ({', '.join(pool)}), but {models[workload]!r} "
                "keeps state between requests (sequence_batching): make it several workloads in the spec, "
                "each with an endpoint, `isolated: true` and a rate for one partition, and plan again",
                field="partitions",
            )


def refuse_large_requests(plan: Plan, repository: Path) -> None:
    """Raise InputError for a workload whose client batch is above its model's limit."""
    for _, _, placement in plan.placements():
        if placement.client_batch == 1:
            continue
        source = read_source(repository, placement.model)
        largest = max(source.config.max_batch_size, 1)
        if placement.client_batch > largest:
            raise InputError(
                f"workload {placement.name!r} sends {placement.client_batch} inferences in a request, and "
                f"the model takes {largest} at most: send smaller ones (client_batch in the spec), or raise "
                "max_batch_size here and profile the model again",
                file=f"{source.directory}/{CONFIG_NAME}",
                field="max_batch_size",
            )


def live_batches(partition: Partition, sources: Mapping[str, SourceModel]) -> tuple[Batches, Batches]:
    """Return the planned and the largest batches of a partition's models that take others while they serve.

    Raises InputError for a model that is to have two of them.
    """
    served = {model.model: model for model in partition.models}
    planned: dict[str, int] = {}
    most: dict[str, int] = {}
    for model, placements in partition.queues().items():
        for name, batch, largest in _live(sources[model], placements[0].endpoint, served[model]):
            if planned.setdefault(name, batch) != batch:
                raise _taken(partition, model, name)
            most[name] = largest
    return tuple(sorted(planned.items())), tuple(sorted(most.items()))


def _live(source: SourceModel, name: str, served: ServedModel) -> Iterator[tuple[str, int, int]]:
    """Yield the name, the planned batch and the largest one of each model that takes another batch."""
    if _takes_live_batch(source, served):
        largest = batch_limit(source.config)
        yield name, min(served.batch, largest), largest
    for one in source.composing:
        yield from _live(one, one.name, served)


def _takes_live_batch(source: SourceModel, served: ServedModel) -> bool:
    folders = (Path(source.directory), *(Path(source.directory, v) for v in source.others if v.isdigit()))
    own = any((folder / BATCH_LIBRARY).exists() for folder in folders)
    return not own and takes_live_batch(source.config, served)


def partition_tree(
    partition: Partition,
    *,
    gpu_type: str,
    sources: Mapping[str, SourceModel],
    library: str | None = None,
) -> Tree:
    """Return one partition's repository from source models, with links to their files.

    With `library`, batches change while it serves, and are not in the configurations of those models.

    Raises InputError for an endpoint that is invalid or occurs twice, for a workload whose model is not in
    the partition, and for workloads that cannot share the queue of their model.
    """
    served = {model.model: model for model in partition.models}
    how = _Served(gpu_type, takes_turns(partition, sources), library)
    entries: dict[str, str | Link] = {}
    for model, placements in partition.queues().items():
        endpoints = tuple(units.safe_name(p.endpoint, "endpoint") for p in placements)
        if model not in served:
            raise InputError(
                f"partition {partition.id!r} lists no model {model!r}, which workload "
                f"{placements[0].name!r} needs",
                field="models",
            )
        source = sources[model]
        own, *aliases = endpoints
        if aliases:
            check_shareable(source, tuple(p.name for p in placements))
        folders = [(own, _model(source, own, served[model], how, partition.drop_after_ms(model)))]
        folders += [(e, _directory(e, alias_config(source, endpoint=e, of=own), source)) for e in aliases]
        for endpoint, folder in folders:
            if f"{endpoint}/{CONFIG_NAME}" in entries:
                raise InputError(
                    f"partition {partition.id!r} serves {endpoint!r} twice; endpoints are unique",
                    field="endpoint",
                )
            entries |= folder
    for model in partition.queues():
        inner = _composing(sources[model], served[model], how)
        if taken := _differing(entries, inner):
            raise _taken(partition, model, taken)
        entries = inner | entries
    return Tree(entries)


def _taken(partition: Partition, model: str, name: str) -> InputError:
    return InputError(
        f"model {model!r} executes {name!r} in partition {partition.id!r}, where another model, or "
        "the same with another batch, has that name: write `isolated: true` at one of the workloads "
        "in the spec, or name its endpoint differently, and plan again",
        field="endpoint",
    )


def together(trees: Iterable[Tree], gpu: str) -> Tree:
    """Return one repository with the models of several partitions of a GPU.

    Raises InputError where they execute models of one name in different ways.
    """
    entries: dict[str, str | Link] = {}
    for tree in trees:
        if taken := _differing(entries, tree.entries):
            raise _differently(taken, gpu)
        entries |= tree.entries
    return Tree(entries)


def together_batches(each: Iterable[Batches], gpu: str) -> Batches:
    """Return the batches of the models of such a repository. Raises InputError as `together`."""
    found: dict[str, int] = {}
    for model, batch in chain.from_iterable(each):
        if found.setdefault(model, batch) != batch:
            raise _differently(model, gpu)
    return tuple(sorted(found.items()))


def _differently(model: str, gpu: str) -> InputError:
    return InputError(
        f"partitions of {gpu} serve {model!r} differently, so no shadow can be shared by them: write "
        "`shadow: {policy: hot}` or `warm` in the spec, and plan again",
        field="shared",
    )


def _model(
    source: SourceModel,
    endpoint: str,
    served: ServedModel,
    how: _Served,
    drop_after_ms: float | None = None,
) -> dict[str, str | Link]:
    """Return the folder of a model that executes. Raises InputError as `check_drop`."""
    if drop_after_ms is not None:
        check_drop(source.config, drop_after_ms, f"{source.directory}/{CONFIG_NAME}")
    live = how.library is not None and _takes_live_batch(source, served)
    config = served_config(
        source.config,
        endpoint=endpoint,
        served=served,
        gpu_type=how.gpu_type,
        turns=how.turns,
        live=live,
        drop_after_ms=drop_after_ms,
    )
    entries = _directory(endpoint, config, source)
    if how.library is not None and live:
        entries[f"{endpoint}/{BATCH_LIBRARY}"] = Link(how.library)
    return entries


def _composing(source: SourceModel, served: ServedModel, how: _Served) -> dict[str, str | Link]:
    """Return the folders of the models that a model executes, under their own names and with its batch.

    Turns hold for the steps of an ensemble, which executes nothing itself. A model that calls others has
    the turn while it waits for them, so they take none.
    """
    entries: dict[str, str | Link] = {}
    inner = replace(how, turns=how.turns and is_ensemble(source.config))
    for one in source.composing:
        as_served = replace(served, model=one.name)
        entries |= _model(one, one.name, as_served, inner) | _composing(one, as_served, inner)
    return entries


def _differing(entries: Mapping[str, str | Link], more: Mapping[str, str | Link]) -> str | None:
    """Return the model whose folder is in both and differs; None where there is none.

    The same model is pinned with each one that executes it, so a file is known by its model and name.
    """
    for path, entry in more.items():
        if _file(entries.get(path, entry)) != _file(entry):
            return path.split("/")[0]
    return None


def _file(entry: str | Link) -> str | tuple[str, ...]:
    return PurePosixPath(entry.target).parts[-2:] if isinstance(entry, Link) else entry


def profiling_tree(source: SourceModel, *, endpoints: Mapping[str, int], gpu_type: str) -> Tree:
    """Return a repository to measure one model: one endpoint for each batch, as in a plan with that batch.

    Models that execute others have one endpoint: the others have their own names, and so one batch. The
    response cache and the limits of queues are left out.
    """
    source = _measured(source)
    entries: dict[str, str | Link] = {}
    how = _Served(gpu_type, in_turn(source))
    for endpoint, batch in endpoints.items():
        served = ServedModel(source.name, batch)
        entries |= _model(source, endpoint, served, how) | _composing(source, served, how)
    return Tree(entries)


def _measured(source: SourceModel) -> SourceModel:
    inner = tuple(_measured(one) for one in source.composing)
    return replace(source, config=measured_config(source.config), composing=inner)


def _directory(endpoint: str, config: str, source: SourceModel) -> dict[str, str | Link]:
    links = {
        f"{endpoint}/{name}": Link(f"{source.pinned or source.directory}/{name}") for name in source.others
    }
    return {f"{endpoint}/{CONFIG_NAME}": config, **links}


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
    return HEADER + str(text_format.MessageToString(config))


def check_shareable(source: SourceModel, workloads: tuple[str, ...]) -> None:
    """Raise InputError, with reason and way out, if these workloads cannot share the model's queue."""
    config = source.config
    if config.HasField("sequence_batching"):
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
