"""Defaults of options from the configuration file and the environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controlplane.cli.defaults import config_path, launcher, read_config
from controlplane.cli.main import run
from controlplane.cli.verbs import VERBS
from controlplane.domain.errors import InputError
from controlplane.domain.serving import LauncherName


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the configuration file, which is not there yet."""
    monkeypatch.chdir(tmp_path)
    for name in ("TRISECT_CONFIG", "TRISECT_FLEET", "TRISECT_LAUNCHER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "trisect").mkdir()
    return tmp_path / "trisect" / "config.toml"


def missing_fleet(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The name of the fleet that `ctl status` looks for."""
    assert run(["status", *arguments]) == 2
    return capsys.readouterr().err.partition("there is no fleet '")[2].partition("'")[0]


def test_the_command_line_overrides_the_environment_and_that_the_file(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert missing_fleet(capsys) == "default"
    config.write_text('fleet = "of-all"\n')
    assert missing_fleet(capsys) == "of-all"
    config.write_text('fleet = "of-all"\n[status]\nfleet = "of-status"\n')
    assert missing_fleet(capsys) == "of-status"
    monkeypatch.setenv("TRISECT_FLEET", "of-environment")
    assert missing_fleet(capsys) == "of-environment"
    assert missing_fleet(capsys, "--fleet", "given") == "given"


def test_an_option_of_all_verbs_is_ignored_by_a_verb_without_it(config: Path) -> None:
    config.write_text('fleet = "shop"\n')
    assert run(["doctor", "--json"]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[plan\n", "is not TOML: .*line 1"),
        ("flet = 'a'\n", "flet: is neither.*did you mean 'fleet'"),
        ("[stats]\nwatch = true\n", "stats: is neither.*did you mean 'status'"),
        ("[status]\nflet = 'a'\n", r"status\.flet: `ctl status` has no such option; did you mean 'fleet'"),
    ],
)
def test_mistakes_name_the_file_and_the_way_out(
    text: str, message: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(text)
    assert run(["status"]) == 2
    err = capsys.readouterr().err
    assert str(config) in err
    assert re.search(message, err)


def test_a_file_that_the_environment_names_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRISECT_CONFIG", "nowhere.toml")
    with pytest.raises(InputError, match="no such file"):
        read_config(config_path(), VERBS)


def test_a_table_with_a_verbs_former_name_is_the_verbs(config: Path) -> None:
    config.write_text("[serve]\nport = 9\nhost = '::1'\n[controller]\nport = 10\n")
    assert read_config(config, VERBS)[1] == {"controller": {"port": 10, "host": "::1"}}


def test_the_launcher_of_a_new_fleet_is_the_environments_else_the_files(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launcher() is None
    config.write_text('launcher = "docker"\n')
    assert launcher() is LauncherName.DOCKER
    monkeypatch.setenv("TRISECT_LAUNCHER", "process")
    assert launcher() is LauncherName.PROCESS
    monkeypatch.setenv("TRISECT_LAUNCHER", "pods")
    with pytest.raises(InputError, match=r"\$TRISECT_LAUNCHER: 'pods' is none of"):
        launcher()
    monkeypatch.delenv("TRISECT_LAUNCHER")
    config.write_text("launcher = 1\n")
    with pytest.raises(InputError) as wrong:
        launcher()
    assert (wrong.value.file, wrong.value.field) == (str(config), "launcher")
