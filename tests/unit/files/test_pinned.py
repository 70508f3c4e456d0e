"""Pinned models are copies that no later write to the repository reaches, made once for the same content."""

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.domain.errors import EngineError, InputError
from controlplane.files import pinned
from controlplane.files.pinned import ModelFolder, Pin, PinRules, PinStore, content
from controlplane.files.pinned.content import Drift, Seen, by_bytes, drift

RULES = PinRules()


@pytest.fixture(autouse=True)
def _old_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a test count as old ones."""
    monkeypatch.setattr(content, "GRAIN_NS", 0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all files that are hashed."""
    found: list[str] = []
    real: Callable[..., Any] = hashlib.file_digest

    def counted(stream: Any, digest: str) -> Any:
        found.append(Path(stream.name).name)
        return real(stream, digest)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "repository" / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "2").mkdir()
    (folder / "config.pbtxt").write_text("written")
    (folder / "labels.txt").write_text("cat")
    (folder / "1" / "model.bin").write_bytes(b"weights")
    (folder / "1" / "run").write_text("#!")
    (folder / "1" / "run").chmod(0o700)
    return folder


def pin(model: Path, rules: PinRules = RULES, known: dict[str, Seen] | None = None) -> Pin:
    store = PinStore(model.parents[1] / "out" / ".pinned", rules, known or {})
    return store.pin([ModelFolder("m", model, "in force")])


def listed(made: Pin) -> dict[str, str]:
    root = Path(made.repository)
    return {str(p.relative_to(root)): p.read_text() for p in root.rglob("*") if p.is_file()}


def test_a_pin_is_a_repository_of_its_own_with_the_configuration_in_force(model: Path) -> None:
    made = pin(model)
    assert listed(made) == {
        "m/config.pbtxt": "in force",
        "m/labels.txt": "cat",
        "m/1/model.bin": "weights",
        "m/1/run": "#!",
    }
    assert Path(made.repository, "m", "2").is_dir()
    assert os.access(Path(made.repository, "m", "1", "run"), os.X_OK)
    assert Path(made.repository, "m", "1", "model.bin").stat().st_mode & 0o777 == 0o444
    assert Path(made.repository).parent.stat().st_mode & 0o777 == 0o700


def test_a_file_edited_in_place_leaves_the_pin_as_it_was(model: Path) -> None:
    made = pin(model)
    os.utime(model / "labels.txt", (1, 1))
    touched = pin(model, known=dict(made.files))
    assert touched.repository == made.repository, "other times of the same content"
    assert touched.files != made.files
    with (model / "1" / "model.bin").open("r+b") as stream:
        stream.write(b"WEIGHTS")
    assert listed(made)["m/1/model.bin"] == "weights"
    changed = pin(model, known=dict(made.files))
    assert changed.repository != made.repository
    assert listed(changed)["m/1/model.bin"] == "WEIGHTS"


def test_what_did_not_change_is_neither_read_nor_copied_again(model: Path, reads: list[str]) -> None:
    made = pin(model)
    assert sorted(reads) == ["config.pbtxt", "labels.txt", "model.bin", "run"]
    reads.clear()
    assert pin(model, known=dict(made.files)) == made
    assert reads == []
    # A preview of a changed file reads that file only.
    (model / "labels.txt").write_text("dog")
    store = PinStore(Path(made.repository).parent, RULES, made.files)
    assert store.preview([ModelFolder("m", model, "in force")]).repository != made.repository
    assert reads == ["labels.txt"]


def test_a_young_file_is_read_again(model: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "GRAIN_NS", 10**12)
    made = pin(model)
    reads.clear()
    assert pin(model, known=dict(made.files)).repository == made.repository
    assert len(reads) == 4


def test_what_a_server_writes_and_links_to_nothing_are_no_content(model: Path) -> None:
    made = pin(model)
    (model / "1" / "__pycache__").mkdir()
    (model / "1" / "__pycache__" / "model.pyc").write_text("")
    (model / ".swp").write_text("")
    (model / "1" / ".#model.bin").symlink_to("user@host.1")
    assert pin(model, known=dict(made.files)) == made


def test_links_are_followed_and_may_be_confined(model: Path) -> None:
    weights = model.parents[1] / "blobs" / "weights"
    weights.parent.mkdir()
    weights.write_text("elsewhere")
    (model / "1" / "linked.bin").symlink_to(weights)
    assert listed(pin(model))["m/1/linked.bin"] == "elsewhere"
    with pytest.raises(InputError, match=r"linked.bin: leads to .*blobs/weights.*TRISECT_LINK_ROOTS"):
        pin(model, PinRules(link_roots=()))
    assert listed(pin(model, PinRules(link_roots=(weights.parent,))))["m/1/linked.bin"] == "elsewhere"


def test_blocks_are_shared_where_the_file_system_can(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def clone(new: int, request: int, old: int) -> None:
        assert request == 0x40049409, "FICLONE"
        os.sendfile(new, old, 0, os.fstat(old).st_size)

    monkeypatch.setattr(fcntl, "ioctl", clone)
    monkeypatch.setattr(shutil, "copyfile", lambda *_: pytest.fail("the bytes were copied"))
    assert listed(pin(model))["m/1/model.bin"] == "weights"


def test_a_pipe_and_a_loop_are_refused(model: Path) -> None:
    (model / "1" / "loop").symlink_to(model)
    with pytest.raises(InputError, match="leads back"):
        pin(model)
    (model / "1" / "loop").unlink()
    os.mkfifo(model / "1" / "pipe")
    with pytest.raises(InputError, match="neither a file nor a folder"):
        pin(model)


def test_a_full_disk_leaves_nothing_behind(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = pin(model)
    (model / "1" / "model.bin").write_text("larger weights")

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(pinned, "_copy", full)
    with pytest.raises(EngineError, match="No space left on device; nothing was changed"):
        pin(model)
    assert [str(p) for p in Path(before.repository).parent.iterdir()] == [before.repository]
    assert listed(before)["m/1/model.bin"] == "weights"


def test_more_than_the_limit_is_refused_before_it_is_copied(model: Path) -> None:
    with (model / "1" / "model.bin").open("wb") as stream:
        stream.truncate(2 * 10**9)
    with pytest.raises(InputError, match=r"2\.0 GB .*\$TRISECT_PINNED_GB"):
        pin(model, PinRules(limit_gb=1.9))
    assert list((model.parents[1] / "out" / ".pinned").iterdir()) == []


def test_a_file_that_changes_while_it_is_copied_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pinned._copy

    def writing(source: Path, target: Path) -> None:
        real(source, target)
        (model / "labels.txt").write_text("another one")

    monkeypatch.setattr(pinned, "_copy", writing)
    with pytest.raises(InputError, match="changed while it was copied"):
        pin(model)


def test_where_files_are_not_copied_a_pin_links_to_them(model: Path, reads: list[str]) -> None:
    made = pin(model, PinRules(copies=False))
    assert Path(made.repository, "m", "1").readlink() == model / "1"
    assert Path(made.repository, "m", "config.pbtxt").read_text() == "in force"
    assert reads == []
    os.utime(model / "1" / "model.bin", (1, 1))
    assert pin(model, PinRules(copies=False)).repository != made.repository


def test_drift_names_what_changed_was_added_and_is_missing(model: Path, reads: list[str]) -> None:
    made = pin(model)
    known: dict[str, Seen] = {}
    assert drift(made.folders, made.files, known, by_bytes) == Drift((), (), ())
    os.utime(model / "1" / "model.bin", (1, 1))
    reads.clear()
    for _ in range(2):
        assert drift(made.folders, made.files, known, by_bytes) == Drift((), (), ())
    assert reads == ["model.bin"], "a file of other times is read once"
    (model / "1" / "model.bin").write_bytes(b"WEIGHTS")
    (model / "2" / "model.bin").write_bytes(b"new")
    (model / "labels.txt").unlink()
    assert drift(made.folders, made.files, known, by_bytes) == Drift(
        (str(model / "1" / "model.bin"),), (str(model / "2" / "model.bin"),), (str(model / "labels.txt"),)
    )
