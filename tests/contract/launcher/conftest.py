"""Every launcher there is, behind one fixture."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher_rig import ROOT, Engine, Fleet, ProcessEngine

from launchers import process_table


@pytest.fixture(autouse=True)
def _triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRISECT_TRITON_HOME", str(ROOT / ".tools" / "triton"))


@pytest.fixture(params=["process", "process with a duty cycle"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    match request.param:
        case "process":
            return ProcessEngine(tmp_path / "state")
        case _:
            return ProcessEngine(tmp_path / "state", "duty-cycle")


@pytest.fixture
def fleet(engine: Engine, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(f"lt{os.getpid()}x{time.monotonic_ns() % 10**6}", engine, tmp_path, engine.launcher())
    try:
        yield made
    finally:
        for server in made.launcher.servers(made.name):
            made.launcher.stop(server, drain_s=0.0)
        made.launcher.sweep(made.name)
        left = made.leftovers()
        for member in process_table.members(fleet=made.name):
            process_table.send(member, signal.SIGKILL)
        assert left == []
