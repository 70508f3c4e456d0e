"""A write that fails leaves the old file whole."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.domain.errors import EngineError, NotNow
from controlplane.files import writing


def refusing(code: int, words: str) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, words)

    return fail


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    writing.write_json(path, {"a": 1})

    monkeypatch.setattr(writing.os, "fsync", refusing(errno.ENOSPC, "No space left on device"))
    with pytest.raises(NotNow, match="No space left on device; the old file is unchanged; make room"):
        writing.write_json(path, {"a": 2})
    assert path.read_text() == writing.to_json({"a": 1})
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"], "no temporary file stays"


def test_what_a_redirect_writes_is_written_over_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "slots.json"
    writing.write_vital(path, "before\n")
    monkeypatch.setattr(writing.tempfile, "mkstemp", refusing(errno.ENOSPC, "No space left on device"))
    writing.write_vital(path, "a little more\n")
    assert path.read_text() == "a little more\n"
    with pytest.raises(EngineError, match="No space left"):
        writing.write_vital(path, "x" * 2**20)
    assert path.read_text() == "a little more\n"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_what_a_file_holds_already_needs_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = tmp_path / "models.map"
    writing.write_derived(path, "m 2\n")
    monkeypatch.setattr(writing.tempfile, "mkstemp", refusing(code, "refused"))
    writing.write_derived(path, "m 2\n")
    if code in (errno.EIO, errno.EROFS):
        with pytest.raises(EngineError, match="refused"):
            writing.write_derived(path, "m 3\n")


def test_a_pipe_is_written_to_and_stays_and_a_device_that_refuses_is_named(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        writing.write_text(pipe, "the plan")
        assert os.read(reader, 100) == b"the plan"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    with pytest.raises(EngineError, match="/dev/full"):
        writing.write_text(Path("/dev/full"), "the plan")
    assert Path("/dev/full").is_char_device()
