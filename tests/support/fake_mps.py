"""MPS daemons by the FAKE programs of `fake_nvidia`, on a FAKE NVML; they end with the block."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_nvml import FakeNvml

from launchers.gpu import control
from launchers.gpu.mps import MpsDaemons

PROGRAMS = Path(__file__).parent / "fake_nvidia"


@contextlib.contextmanager
def fake_daemons(folder: Path, nvml: FakeNvml, patch: pytest.MonkeyPatch) -> Iterator[MpsDaemons]:
    """Daemons that keep their files in `folder`."""
    patch.setitem(sys.modules, "pynvml", nvml)
    patch.setenv("PATH", f"{PROGRAMS}:{os.environ['PATH']}")
    patch.delenv(control.PIPES, raising=False)
    made = MpsDaemons(folder)
    try:
        yield made
    finally:
        for pipes in folder.glob("*/pipe"):
            for file in ("clients", "deaf"):
                (pipes / file).unlink(missing_ok=True)
        made.sweep()
