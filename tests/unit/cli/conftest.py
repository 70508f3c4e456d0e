"""A directory of their own for all tests of verbs."""

from pathlib import Path

import pytest
from told import Ctl


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and an empty state directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def ctl(capsys: pytest.CaptureFixture[str]) -> Ctl:
    """Run command lines."""
    return Ctl(capsys)
