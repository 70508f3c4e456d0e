"""The gateway of the tests of its network."""

import os
from collections.abc import Iterator

import pytest
from tls_network import Network, a_network, created

from controlplane.files.gateway.access import Client


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with a_network(tmp_path_factory.mktemp("network")) as running:
        yield running


@pytest.fixture
def token(network: Network) -> Iterator[str]:
    """Of a client that may call `first` and `slow`."""
    with created(network, Client(f"client-{os.getpid()}", ("first", "slow"))) as given:
        yield given
