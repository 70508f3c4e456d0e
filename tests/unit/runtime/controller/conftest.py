"""An observer of one server, and that server as one that hangs."""

from collections.abc import Iterator

import pytest
from observer_rig import Rig, observing, silent_port


@pytest.fixture
def rig() -> Iterator[Rig]:
    with observing() as made:
        yield made


@pytest.fixture
def hangs(rig: Rig) -> Iterator[None]:
    """The server takes requests and answers none; its canaries have not given it up yet."""
    rig.without_canaries()
    with silent_port() as port:
        rig.listen(port)
        yield
