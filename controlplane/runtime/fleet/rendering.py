"""A plan's model repositories on disk, and what they were made from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from controlplane.control.converge.desired import Rendered
from controlplane.domain.plan import Plan
from controlplane.domain.tree import Link, Tree
from controlplane.files.rendered import rendered_path, write_rendered
from controlplane.render.repository import refuse_large_requests, refuse_pooled_sequences, render_partition


def render_plan(plan: Plan, *, repository: Path, output: Path, fleet: str) -> dict[str, Rendered]:
    """Write OUTPUT/<fleet>/<partition>/<content hash> for every partition; returns them by partition id.

    Raises InputError for a source model that cannot be served, not by a pool, or not requests of the size
    that the plan's clients send; EngineError where the disk refuses.
    """
    return _rendered(plan, repository, partial(write_rendered, output, fleet))


def preview_plan(plan: Plan, *, repository: Path, output: Path, fleet: str) -> dict[str, Rendered]:
    """What `render_plan` would return; nothing is written."""
    return _rendered(plan, repository, partial(rendered_path, output, fleet))


def _rendered(plan: Plan, repository: Path, place: Callable[[str, Tree], Path]) -> dict[str, Rendered]:
    refuse_pooled_sequences(plan, repository.resolve())
    refuse_large_requests(plan, repository.resolve())
    trees = {
        partition.id: render_partition(partition, gpu_type=gpu.type, repository=repository.resolve())
        for gpu, partition in plan.partitions()
    }
    return {
        partition: Rendered(str(place(partition, tree)), _fingerprint(tree))
        for partition, tree in trees.items()
    }


def _fingerprint(tree: Tree) -> str:
    """Of all that is rendered and, by size and time, of the weights it links to."""
    stamp = hashlib.sha256(tree.content_hash.encode())
    for entry in tree.entries.values():
        if isinstance(entry, Link):
            target = Path(entry.target)
            # The Python that runs a model writes its __pycache__ there.
            files = (p for p in (target, *target.rglob("*")) if p.is_file() and p.suffix != ".pyc")
            for path in sorted(files):
                found = path.stat()
                stamp.update(f"{path}|{found.st_size}|{found.st_mtime_ns}\n".encode())
    return stamp.hexdigest()
