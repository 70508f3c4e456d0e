"""Defaults of options from the environment."""

from __future__ import annotations

import pytest

from controlplane.cli.main import run
from controlplane.cli.options import launcher_of_environment
from controlplane.domain.errors import InputError
from controlplane.domain.serving import LauncherName


def test_the_command_line_overrides_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRISECT_FLEET", "of-environment")
    for given, arguments in (("of-environment", []), ("given", ["--fleet", "given"])):
        monkeypatch.setenv("TRISECT_FLEET", "of-environment")
        assert run(["status", *arguments]) == 2
        assert f"there is no fleet {given!r}" in capsys.readouterr().err


def test_the_launcher_of_a_new_fleet_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRISECT_LAUNCHER", raising=False)
    assert launcher_of_environment() is None
    monkeypatch.setenv("TRISECT_LAUNCHER", "process")
    assert launcher_of_environment() is LauncherName.PROCESS
    monkeypatch.setenv("TRISECT_LAUNCHER", "pods")
    with pytest.raises(InputError) as wrong:
        launcher_of_environment()
    assert wrong.value.field == "$TRISECT_LAUNCHER"
