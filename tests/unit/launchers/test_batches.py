import errno
import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import build
import pytest

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import LIVE_BATCHES
from launchers.host_lifecycle import HostPlace
from launchers.process import ProcessLauncher
from launchers.triton import batches
from launchers.triton.batches import BatchFiles

TWO = (("a", 4), ("b", 8))


@pytest.fixture
def files(tmp_path: Path) -> BatchFiles:
    made = BatchFiles(tmp_path / "server")
    made.make(TWO, shared=False)
    return made


def test_batches_are_read_as_they_were_set(files: BatchFiles) -> None:
    assert files.read() == TWO
    files.set((("b", 2),))
    assert files.read() == (("a", 4), ("b", 2))
    files.remove()
    assert files.read() == ()


def test_each_change_has_a_generation_of_its_own_which_is_never_0(files: BatchFiles) -> None:
    page = files.limits / "a"
    page.write_bytes((0xFFFFFFFF_00000004).to_bytes(8, "little").ljust(4096, b"\0"))
    files.set((("a", 5),))
    assert page.read_bytes()[:8] == (1 << 32 | 5).to_bytes(8, "little")


def test_a_new_start_has_no_answer_of_the_library_of_the_one_before(files: BatchFiles) -> None:
    assert files.unanswered() == ("a", "b")
    (files.seen / "a").write_bytes((1 << 32).to_bytes(8, "little").ljust(4096, b"\0"))
    assert files.unanswered() == ("b",)
    files.make(TWO, shared=False)
    assert files.unanswered() == ("a", "b")


def test_other_users_read_nothing_of_it(files: BatchFiles) -> None:
    assert {path.stat().st_mode & 0o077 for path in files.folder.rglob("*")} == {0}


def test_another_users_server_reads_its_limits_and_writes_its_answers(tmp_path: Path) -> None:
    made = BatchFiles(tmp_path / "batches" / "server")
    made.make(TWO, shared=True)
    root = made.folder.parent
    modes = {str(p.relative_to(root)): p.stat().st_mode & 0o777 for p in (root, *root.rglob("*"))}
    assert modes == {
        ".": 0o700,
        "server": 0o711,
        "server/limits": 0o711,
        "server/limits/a": 0o644,
        "server/limits/b": 0o644,
        "server/seen": 0o711,
        "server/seen/a": 0o666,
        "server/seen/b": 0o666,
    }


def _truncated(path: Path) -> None:
    os.truncate(path, 3)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE = pytest.mark.parametrize("damage", [Path.unlink, _truncated, _fifo, _link, _folder])


@DAMAGE
def test_whatever_a_server_puts_in_place_of_its_answer_is_none(
    files: BatchFiles, damage: Callable[[Path], None]
) -> None:
    (files.seen / "b").write_bytes((1 << 32).to_bytes(8, "little").ljust(4096, b"\0"))
    damage(files.seen / "a")
    assert files.unanswered() == ("a",)


@DAMAGE
def test_a_file_that_is_lost_is_made_again_with_a_generation_after_the_answered_one(
    files: BatchFiles, damage: Callable[[Path], None]
) -> None:
    (files.seen / "a").write_bytes((7 << 32 | 3).to_bytes(8, "little").ljust(4096, b"\0"))
    damage(files.limits / "a")
    assert files.read() == (("b", 8),)
    files.set((("a", 2),))
    assert files.read() == (("a", 2), ("b", 8))
    assert (files.limits / "a").read_bytes()[:8] == (8 << 32 | 2).to_bytes(8, "little")
    assert (files.limits / "a").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("shared", [False, True])
def test_a_folder_of_limits_that_is_lost_is_made_again(tmp_path: Path, shared: bool) -> None:
    files = BatchFiles(tmp_path / "server")
    files.make(TWO, shared=shared)
    modes = [path.stat().st_mode for path in (files.limits, files.limits / "a")]
    (files.seen / "a").write_bytes((7 << 32 | 3).to_bytes(8, "little").ljust(4096, b"\0"))
    shutil.rmtree(files.limits)
    files.set((("a", 2),))
    assert files.read() == (("a", 2),)
    assert [path.stat().st_mode for path in (files.limits, files.limits / "a")] == modes


def test_without_files_a_server_starts_with_the_planned_batches(files: BatchFiles) -> None:
    assert batches.environment((), None) == {}
    assert batches.environment(TWO, None) == {"TRISECT_BATCHES": "4:a/8:b/"}
    assert set(batches.environment(TWO, files)) == {
        "TRISECT_BATCHES",
        "TRISECT_BATCH_LIMITS",
        "TRISECT_BATCH_SEEN",
    }


def test_a_model_without_a_file_has_no_batch_to_change(files: BatchFiles) -> None:
    with pytest.raises(EngineError, match="the batch of c"):
        files.set((("c", 2),))


def test_a_sweep_leaves_what_runs_and_what_may_just_start(tmp_path: Path) -> None:
    long_ago = time.time() - 1000
    for name in ("alive", "dead", "starts"):
        BatchFiles(tmp_path / name).make(TWO, shared=False)
        if name != "starts":
            os.utime(tmp_path / name, (long_ago, long_ago))
    batches.sweep(tmp_path, {"alive"})
    assert {path.name for path in tmp_path.iterdir()} == {"alive", "starts"}


def test_without_a_library_or_switched_off_batches_are_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_LIBRARIES", tmp_path)
    assert batches.library() is None
    assert not batches.capability().available
    built = tmp_path / f"batch_limit.{platform.machine()}.so"
    built.touch()
    assert batches.library() == str(built)
    assert batches.capability().available
    monkeypatch.setenv(LIVE_BATCHES, "off")
    assert batches.library() is None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_where_the_disk_is_full_a_server_starts_without_files(
    files: BatchFiles, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    assert _place(files, monkeypatch, code) == HostPlace(core=0)
    assert not files.folder.exists()


def test_files_that_cannot_be_made_fail_a_start_with_a_reason(
    files: BatchFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineError, match="batch files of"):
        _place(files, monkeypatch, errno.EACCES)


def _place(files: BatchFiles, monkeypatch: pytest.MonkeyPatch, code: int) -> HostPlace:
    """The place of a server whose second page cannot be written."""
    written: list[Path] = []

    def write(path: Path, word: int, access: int) -> None:
        if written:
            raise OSError(code, os.strerror(code))
        written.append(path)

    monkeypatch.setattr(batches, "_write_page", write)
    launcher = ProcessLauncher(files.folder.parent)
    return launcher._with_files(replace(build.spec(), batches=TWO), HostPlace(core=0, batches=files))
