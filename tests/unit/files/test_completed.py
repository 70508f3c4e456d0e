"""Completed configurations between commands: kept while the model is as Triton saw it."""

import os
from pathlib import Path
from typing import Any

import pytest

from controlplane.files.models import read_completed, write_completed


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "1" / "model.py").write_text("pass")
    return tmp_path / "models" / "m"


def test_a_completed_configuration_is_kept_outside_the_repository(model: Path) -> None:
    assert read_completed(model) is None
    write_completed(model, 'backend: "b"')
    assert read_completed(model) == 'backend: "b"'
    assert [p.name for p in model.iterdir()] == ["1"]
    (model / "1" / "__pycache__").mkdir()
    (model / "1" / "__pycache__" / "model.cpython-311.pyc").write_text("")
    assert read_completed(model) is not None, "a run of the model does not outdate it"


def test_changed_files_or_a_changed_configuration_outdate_it(model: Path) -> None:
    write_completed(model, "")
    (model / "1" / "model.py").write_text("pass  # other")
    assert read_completed(model) is None
    write_completed(model, "")
    (model / "config.pbtxt").write_text("max_batch_size: 4")
    assert read_completed(model) is None


@pytest.mark.parametrize("vanishes", ["config.pbtxt", "1/model.py", "1"])
def test_a_file_that_vanishes_while_it_is_looked_at_outdates_it(
    model: Path, monkeypatch: pytest.MonkeyPatch, vanishes: str
) -> None:
    (model / "config.pbtxt").write_text("max_batch_size: 4")
    write_completed(model, "")
    gone, stat = model / vanishes, os.stat
    (model / "elsewhere").mkdir()

    def last_seen(path: Any, **options: Any) -> os.stat_result:
        found = stat(path, **options)
        if str(path) == str(gone):
            gone.rename(model / "elsewhere" / gone.name)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", last_seen)
        read_completed(model)
    assert not gone.exists()
    assert read_completed(model) is None


def test_two_repositories_with_a_model_of_one_name_are_kept_apart(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "others" / "m"
    other.mkdir(parents=True)
    write_completed(model, "one")
    write_completed(other, "other")
    assert (read_completed(model), read_completed(other)) == ("one", "other")


def test_a_damaged_file_counts_as_none(model: Path, tmp_path: Path) -> None:
    write_completed(model, "")
    (kept,) = (tmp_path / "state" / "trisect" / ".completed").iterdir()
    kept.write_text("{")
    assert read_completed(model) is None
