"""A rendered model repository as a pod gets it: texts of a ConfigMap, links into the models' volume."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.errors import InputError

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
