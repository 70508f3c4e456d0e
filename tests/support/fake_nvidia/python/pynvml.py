"""The FAKE of pynvml with one GPU, for programs that a test starts: first in their PYTHONPATH."""

import os
from pathlib import Path
from typing import Any

from fake_nvml import FakeGpu, FakeNvml

UUID = "GPU-11111111-2222-3333-4444-555555555555"
_NVML = FakeNvml(FakeGpu(UUID, "NVIDIA FAKE F100", folder=Path(os.environ["FAKE_GPU"])))


def __getattr__(name: str) -> Any:
    return getattr(_NVML, name)
