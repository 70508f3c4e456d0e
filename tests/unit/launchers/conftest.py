"""A host with two GPUs, by FAKES of NVML and MPS: nothing here ran on a GPU."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_mps import fake_daemons
from fake_nvml import FakeGpu, FakeNvml

from launchers.gpu.mps import MpsDaemons

ONE, TWO = "GPU-11111111-2222-3333-4444-555555555555", "GPU-99999999-2222-3333-4444-555555555555"


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml(FakeGpu(ONE), FakeGpu(TWO))


@pytest.fixture
def daemons(tmp_path: Path, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Iterator[MpsDaemons]:
    with fake_daemons(tmp_path / "mps", nvml, monkeypatch) as made:
        yield made
