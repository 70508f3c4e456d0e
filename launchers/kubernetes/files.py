"""The objects beside a server's pod: its rendered repository, and its partition's disruption budget."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.models.policy_v1 import PodDisruptionBudgetSpec
from lightkube.resources.core_v1 import ConfigMap
from lightkube.resources.policy_v1 import PodDisruptionBudget

from controlplane.domain.errors import InputError
from controlplane.domain.fleet import ServerSpec
from launchers.kubernetes import names

_MOST_BYTES = 900_000
"""Below the API server's limit of 1 MiB for a ConfigMap, which counts names too."""


@dataclass(frozen=True, slots=True)
class RenderedFiles:
    """The files of a rendered repository by their paths in it, parts joined by '/'.

    `texts` are what was rendered. `links` lead into the source repository: MODEL/NAME, where NAME is a
    version or a file.
    """

    texts: Mapping[str, str]
    links: Mapping[str, str]


def read(repository: str) -> RenderedFiles:
    """Return the content of a rendered repository.

    Each of its links leads to REPOSITORY/MODEL/NAME. Raises InputError for a file that is no text, or more
    text than a ConfigMap holds.
    """
    root = Path(repository)
    texts: dict[str, str] = {}
    links: dict[str, str] = {}
    for folder, folders, files in os.walk(root):
        for name in sorted((*folders, *files)):
            path = Path(folder) / name
            inside = path.relative_to(root).as_posix()
            if path.is_symlink():
                target = path.readlink()
                links[inside] = f"{target.parent.name}/{target.name}"
            elif path.is_file() and "__pycache__" not in path.parts:
                texts[inside] = _text(path)
    size = sum(len(path) + len(text.encode()) for path, text in texts.items())
    if size > _MOST_BYTES:
        raise InputError(
            f"{size} bytes of rendered files do not fit into a ConfigMap ({_MOST_BYTES}): put them into a "
            "version folder of the source model",
            file=repository,
        )
    return RenderedFiles(texts, links)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        raise InputError(
            "is no text, which a ConfigMap needs: put it into a version folder of the source model",
            file=str(path),
        ) from None


def config_key(path: str) -> str:
    """Return a path as the key of a ConfigMap, which may not contain '/'. No name contains '..'."""
    return path.replace("/", "..")


def config_map(spec: ServerSpec, files: RenderedFiles) -> ConfigMap:
    """Return a server's rendered files. Immutable: another content is another revision, with another name."""
    return ConfigMap(
        metadata=ObjectMeta(
            name=names.server_object(spec),
            labels=dict(names.server_labels(spec)),
            annotations={names.NAME: spec.name},
        ),
        data={config_key(path): text for path, text in sorted(files.texts.items())},
        immutable=True,
    )


def disruption_budget(spec: ServerSpec) -> PodDisruptionBudget:
    """Return the budget of a partition: a voluntary eviction leaves one of its servers, active or shadow.

    `minAvailable`, since pods without a controller allow nothing else. A server that is not ready may be
    evicted: it protects nothing.
    """
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=names.partition_object(spec), labels=names.partition_labels(spec)),
        spec=PodDisruptionBudgetSpec(
            minAvailable=1,
            selector=LabelSelector(matchLabels=names.partition_labels(spec)),
            unhealthyPodEvictionPolicy="AlwaysAllow",
        ),
    )
