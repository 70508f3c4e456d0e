"""What the doctor says of shares, by what a launcher itself has found."""

import os
from pathlib import Path

import pytest

from controlplane.runtime.jobs.doctor import examine
from launchers.docker.launcher import DockerLauncher


def test_without_an_engine_the_shares_lack_the_engine_and_not_root(tmp_path: Path) -> None:
    away = DockerLauncher(tmp_path, address=f"unix://{tmp_path}/no.sock")
    found = {c.name: c for c in examine((away,))}
    shares = found["docker shares"]
    assert not shares.available
    assert (shares.detail, shares.remedy) == (found["docker"].detail, "see docker")
    assert "root" not in f"{shares.detail} {shares.remedy}"


@pytest.mark.parametrize(
    ("version", "features", "available"),
    [
        ("2.6.12", "+LUA +PCRE2", True),
        ("2.6.12", "-LUA +PCRE2", False),
        ("3.2.1", "+LUA +PCRE2", False),
        ("3.2.2", "+LUA +PCRE2", True),
    ],
)
def test_a_haproxy_that_cannot_run_the_gateway_is_not_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, features: str, available: bool
) -> None:
    program = tmp_path / "haproxy"
    program.write_text(
        f"#!/bin/sh\necho 'HAProxy version {version} 2023/05/10'\necho 'Feature list : {features}'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (found,) = (c for c in examine(()) if c.name == "haproxy")
    assert found.available is available
