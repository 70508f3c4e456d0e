"""What the doctor says of shares, by what a launcher itself has found."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.runtime.jobs.doctor import examine
from launchers.docker.launcher import DockerLauncher

pytestmark = pytest.mark.unit


def test_without_an_engine_the_shares_lack_the_engine_and_not_root(tmp_path: Path) -> None:
    away = DockerLauncher(tmp_path, address=f"unix://{tmp_path}/no.sock")
    found = {c.name: c for c in examine((away,))}
    shares = found["docker shares"]
    assert not shares.available
    assert (shares.detail, shares.remedy) == (found["docker"].detail, "see docker")
    assert "root" not in f"{shares.detail} {shares.remedy}"
