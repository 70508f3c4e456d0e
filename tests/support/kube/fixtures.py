"""Fixtures: one cluster for all tests of a session, which make namespaces of their own."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kube import cluster as clusters
from kube import images, own_image
from kube.cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with clusters.running() as made:
        yield made


@pytest.fixture(scope="session")
def triton_image(cluster: Cluster) -> str:
    """The Triton of the container tests, on every node; its name."""
    _load(cluster, images.triton(cluster.folder))
    return images.TRITON


@pytest.fixture(scope="session")
def trisect_image(cluster: Cluster) -> str:
    """The project's image, built and on every node; its name."""
    _load(cluster, own_image.build(cluster.folder / "image"))
    return own_image.TAG


def _load(cluster: Cluster, archive: Path) -> None:
    """Import an image on all nodes at once, and remove its archive."""
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(lambda node: node.load(archive), cluster.nodes):
            pass
    archive.unlink()
