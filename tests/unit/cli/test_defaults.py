"""Defaults of options from the configuration file and the environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controlplane.cli.defaults import config_path, read_config
from controlplane.cli.main import run
from controlplane.cli.verbs import VERBS
from controlplane.domain.errors import InputError


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the configuration file, which is not there yet."""
    monkeypatch.chdir(tmp_path)
    for name in ("TRISECT_CONFIG", "TRISECT_FLEET"):
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
