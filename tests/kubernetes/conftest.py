"""One cluster for all tests of a session; each makes namespaces of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kube import cluster as clusters
from kube.cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with clusters.running() as made:
        yield made
