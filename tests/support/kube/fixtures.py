"""Fixtures: one cluster for all tests of a session, which make namespaces of their own."""

from __future__ import annotations

from collections.abc import Iterator

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
    archive = images.triton(cluster.folder)
    for node in cluster.nodes:
        node.load(archive)
    archive.unlink()
    return images.TRITON


@pytest.fixture(scope="session")
def trisect_image(cluster: Cluster) -> str:
    """The project's image, built and on every node; its name."""
    archive = own_image.build(cluster.folder / "image")
    for node in cluster.nodes:
        node.load(archive)
    return own_image.TAG
