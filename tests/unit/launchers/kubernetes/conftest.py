"""A served fake of the API, to which the environment's kubeconfig leads."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_kubernetes import FakeCluster, Serving, served


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeCluster, Serving]]:
    with served() as (cluster, made):
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "config")))
        yield cluster, made


@pytest.fixture
def cluster(serving: tuple[FakeCluster, Serving]) -> FakeCluster:
    return serving[0]
