from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_rig import Triton, a_gateway, tritons

from controlplane.gateway.haproxy import HaproxyGateway, Ports


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Triton]]:
    """Two Tritons with the same models: one active, one shadow."""
    models = {"echo": "echo", "slow": "slow"}
    with tritons(tmp_path_factory.mktemp("tritons"), one=models, two=models) as running:
        yield running


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[tuple[HaproxyGateway, Ports]]:
    with a_gateway(tmp_path) as made:
        yield made
