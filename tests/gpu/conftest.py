"""One GPU and one rig for all tests of the suite, so that one file has what was measured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gpu_servers import Rig, obstacle

from launchers.gpu import gpus


@pytest.fixture(scope="session")
def gpu() -> gpus.HostGpu:
    why_not = obstacle()
    if why_not is not None:
        pytest.skip(f"GPU TESTS NOT RUN: {why_not}")
    whole = [g for g in gpus.inventory() if not g.mig]
    if not whole:
        pytest.skip("GPU TESTS NOT RUN: every GPU is cut into MIG instances")
    return whole[0]


@pytest.fixture(autouse=True)
def _kept(rig: Rig) -> Iterator[None]:
    """What is known after each test is on disk, should the machine go away."""
    yield
    rig.write()


@pytest.fixture(scope="session")
def rig(gpu: gpus.HostGpu, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(gpu, tmp_path_factory.mktemp("gpu"))
    try:
        yield made
    finally:
        made.stop(*made.launcher.servers("gputest"))
        made.launcher.sweep("gputest")
