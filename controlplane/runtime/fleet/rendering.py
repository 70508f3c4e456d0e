"""A plan's model repositories on disk, made from pinned models, and what of them is still needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from controlplane.control.converge.desired import Rendered
from controlplane.domain.device import CPU_DEVICE
from controlplane.domain.errors import InputError
from controlplane.domain.fleet import BATCH_LIBRARY, Batches, ServerSpec
from controlplane.domain.plan import Plan
from controlplane.files.fleets import FleetFiles, FleetSettings
from controlplane.files.pinned import Applied, ModelFolder, PinRules, PinStore
from controlplane.files.pinned.content import Seen
from controlplane.files.plans import plan_hash
from controlplane.files.rendered import (
    Link,
    Tree,
    forget_rendered,
    pinned_root,
    rendered_path,
    write_rendered,
)
from controlplane.ports import Launcher
from controlplane.profiler.temporary import check_python_path
from controlplane.render.config import instances_note
from controlplane.render.repository import (
    live_batches,
    partition_tree,
    refuse_large_requests,
    refuse_pooled_sequences,
    takes_turns,
    together,
    together_batches,
)
from controlplane.render.source import SourceModel, folders_of, pinned_at, read_source
from controlplane.runtime.fleet.execute import Say

_PINNED_PARTS = 3
"""Of a link to a pinned model: its digest, the model and the name in the model's folder."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fleet's repositories are written; without `write`, only their paths are found.

    `library` is the installation's batch library, None where batches are fixed.
    """

    output: Path
    fleet: str
    write: bool = True
    library: str | None = None


def pinned_plan(
    plan: Plan, repository: Path, place: Place, rules: PinRules, known: Mapping[str, Seen]
) -> tuple[Applied, dict[str, Rendered]]:
    """Pin the models of a plan as they are in `repository` now, and render the plan from them.

    Raises InputError for a source model that cannot be served, cannot be served by a pool, or refuses
    requests as large as the clients', and as `PinStore.pin`; EngineError where the disk refuses.
    """
    refuse_pooled_sequences(plan, repository.resolve())
    refuse_large_requests(plan, repository.resolve())
    store = PinStore(pinned_root(place.output, place.fleet), rules, known)
    models = sorted({placement.model for _, _, placement in plan.placements()})
    sources = {model: read_source(repository.resolve(), model) for model in models}
    # Rendered without the copies first: what cannot be served is refused before anything large is copied.
    _contents(plan, sources, place.library)
    pin = store.pin if place.write else store.preview
    try:
        pins = {model: pin(folders_of(source)) for model, source in sources.items()}
        placed = {model: pinned_at(source, pins[model]) for model, source in sources.items()}
        if place.library is not None:
            # By its folder as a model is: an installation may move while servers start.
            name = Path(place.library).name
            pinned = pin([ModelFolder("plugin", Path(place.library).parent, "")])
            place = replace(place, library=str(Path(pinned.repository, "plugin", name)))
        return Applied(plan_hash(plan), pins, place.library), _rendered(plan, placed, place)
    except BaseException:
        store.undo()
        raise


def check_models(plan: Plan, repository: Path, output: Path, launcher: Launcher, say: Say) -> None:
    """Say which models of a plan are not served with the instances that the user wrote.

    Raises InputError as `read_source`, and for an `output` from which a Python model would not start.
    """
    types = {placement.model: gpu.type for gpu, _, placement in plan.placements()}
    for model, gpu_type in sorted(types.items()):
        source = read_source(repository, model)
        if "python" in (source.config.backend, *(one.config.backend for one in source.composing)):
            check_python_path(launcher, output.resolve())
        note = instances_note(source.config, on_gpu=gpu_type != CPU_DEVICE)
        if note:
            say(f"{model}: {note}")


def rendered_plan(plan: Plan, applied: Applied, place: Place) -> dict[str, Rendered]:
    """Render a plan from models that are pinned. Raises InputError where one is gone, and EngineError."""
    models = sorted({placement.model for _, _, placement in plan.placements()})
    for model in models:
        if not Path(applied.models[model].repository).is_dir():
            raise InputError(
                f"the copy of {model!r} that the last apply made is gone: `ctl apply` the plan again",
                file=applied.models[model].repository,
            )
    sources = {model: read_source(Path(applied.models[model].repository), model) for model in models}
    if place.library is not None and applied.library is not None:
        place = replace(place, library=applied.library)
    return _rendered(plan, sources, place)


def announce_output(files: FleetFiles, output: str) -> None:
    """Record an output directory before it is used, so that its content is removed after any kill."""
    known = files.settings()
    if known is not None and output not in (known.output, *known.former_outputs):
        files.write_settings(replace(known, former_outputs=(*known.former_outputs, output)))


def forget_unused(files: FleetFiles, settings: FleetSettings, specs: Iterable[ServerSpec]) -> None:
    """Remove the repositories that none of `specs` uses; a rollback renders its plan again.

    Of the pinned models stay those which these repositories, the plan and the previous one have.
    """
    record = files.record()
    needed = {spec.repository for spec in specs}
    for one in filter(None, (record.applied, record.previous)):
        needed |= set(one.repositories.values())
        needed |= {str(Path(one.library).parents[1])} if one.library is not None else set()
    forget_rendered(Path(settings.output), files.fleet, needed)
    former = settings.former_outputs
    left = tuple(output for output in former if forget_rendered(Path(output), files.fleet, needed))
    if left != former:
        files.write_settings(replace(settings, former_outputs=left))


class _Content(NamedTuple):
    """What is rendered of a partition: its files, and `Rendered` of the same names."""

    tree: Tree
    turns: bool
    batches: Batches = ()
    largest: Batches = ()


def _contents(plan: Plan, sources: Mapping[str, SourceModel], library: str | None) -> dict[str, _Content]:
    found = {}
    for gpu, partition in plan.partitions():
        its = {placement.model: sources[placement.model] for placement in partition.workloads}
        tree = partition_tree(partition, gpu_type=gpu.type, sources=its, library=library)
        batches: tuple[Batches, ...] = ()
        if library is not None:
            batches = live_batches(partition, its)
        found[partition.id] = _Content(tree, takes_turns(partition, its), *batches)
    for gpu in plan.gpus:
        if gpu.shared is not None:
            own = [found[partition.id] for partition in gpu.sharers]
            tree = together([one.tree for one in own], gpu.id)
            live = together_batches([one.batches for one in own], gpu.id)
            found[gpu.shared.id] = _Content(tree, any(one.turns for one in own), live)
    return found


def _rendered(plan: Plan, sources: Mapping[str, SourceModel], place: Place) -> dict[str, Rendered]:
    put = write_rendered if place.write else rendered_path
    found = {}
    for partition, one in _contents(plan, sources, place.library).items():
        path = str(put(place.output, place.fleet, partition, one.tree))
        found[partition] = Rendered(path, _fingerprint(one.tree), one.turns, one.batches, one.largest)
    return found


def _fingerprint(tree: Tree) -> str:
    """Return a hash of a tree's content, wherever its pinned models lie.

    Another version of the batch library is for servers that start later, and replaces none.
    """
    entries = {}
    for path, entry in tree.entries.items():
        if isinstance(entry, Link):
            parts = 1 if Path(path).name == BATCH_LIBRARY else _PINNED_PARTS
            entry = Link("/".join(Path(entry.target).parts[-parts:]))
        entries[path] = entry
    return Tree(entries).content_hash
