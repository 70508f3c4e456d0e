from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_rig import Ports, Triton, a_gateway, tritons

from controlplane.gateway.haproxy import HaproxyGateway


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Triton]]:
    """Two Tritons with the same models: one active, one shadow."""
    models = {"echo": "echo", "slow": "slow"}
    with tritons(tmp_path_factory.mktemp("tritons"), on_sockets=True, one=models, two=models) as running:
        yield running


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Below it lies the state directory of the module's gateway."""
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def gateway(home: Path) -> Iterator[tuple[HaproxyGateway, Ports]]:
    """One gateway for all tests of a module: each commits its own routes."""
    with a_gateway(home) as made:
        yield made


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[tuple[HaproxyGateway, Ports]]:
    """A gateway that nobody has used."""
    with a_gateway(tmp_path) as made:
        yield made
