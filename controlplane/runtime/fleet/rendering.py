"""A plan's model repositories on disk, and a fingerprint of their content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from controlplane.control.converge.desired import Rendered
from controlplane.domain.plan import Plan
from controlplane.domain.tree import Link, Tree
from controlplane.files.rendered import rendered_path, write_rendered
from controlplane.render.repository import (
    partition_sources,
    partition_tree,
    refuse_large_requests,
    refuse_pooled_sequences,
    takes_turns,
)


def render_plan(plan: Plan, *, repository: Path, output: Path, fleet: str) -> dict[str, Rendered]:
    """Write OUTPUT/<fleet>/<partition>/<content hash> for every partition; return them by partition id.

    Raises InputError for a source model that cannot be served, cannot be served by a pool, or refuses
    requests as large as the clients'; EngineError where the disk refuses.
    """
    return _rendered(plan, repository, partial(write_rendered, output, fleet))


def preview_plan(plan: Plan, *, repository: Path, output: Path, fleet: str) -> dict[str, Rendered]:
    """Return the result of `render_plan` without writing anything."""
    return _rendered(plan, repository, partial(rendered_path, output, fleet))


def _rendered(plan: Plan, repository: Path, place: Callable[[str, Tree], Path]) -> dict[str, Rendered]:
    refuse_pooled_sequences(plan, repository.resolve())
    refuse_large_requests(plan, repository.resolve())
    trees: dict[str, tuple[Tree, bool]] = {}
    for gpu, partition in plan.partitions():
        sources = partition_sources(partition, repository.resolve())
        tree = partition_tree(partition, gpu_type=gpu.type, sources=sources)
        trees[partition.id] = (tree, takes_turns(partition, sources))
    return {
        partition: Rendered(str(place(partition, tree)), _fingerprint(tree), turns)
        for partition, (tree, turns) in trees.items()
    }


def _fingerprint(tree: Tree) -> str:
    """Hash all rendered files and, by size and time, the weights that they link to."""
    stamp = hashlib.sha256(tree.content_hash.encode())
    for entry in tree.entries.values():
        if isinstance(entry, Link):
            target = Path(entry.target)
            # Running the model writes a __pycache__ there.
            files = (p for p in (target, *target.rglob("*")) if p.is_file() and p.suffix != ".pyc")
            for path in sorted(files):
                found = path.stat()
                stamp.update(f"{path}|{found.st_size}|{found.st_mtime_ns}\n".encode())
    return stamp.hexdigest()
