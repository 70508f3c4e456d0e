import errno
import os
from pathlib import Path

import pytest

from controlplane.domain.errors import EngineError
from controlplane.files.rendered import Link, Tree, forget_rendered, read_tree, write_rendered, write_tree

ONE, OTHER = Tree({"m/config.pbtxt": "one"}), Tree({"m/config.pbtxt": "other"})


def test_equal_content_has_one_path(tmp_path: Path) -> None:
    first = write_rendered(tmp_path, "f", "a", ONE)
    assert write_rendered(tmp_path, "f", "a", ONE) == first
    assert write_rendered(tmp_path, "f", "a", OTHER) != first
    assert (first / "m" / "config.pbtxt").read_text() == "one", "a server may still read it"


def test_other_users_reach_no_configuration_and_a_container_reads_its_own(tmp_path: Path) -> None:
    """A container's user sees the folder of the partition only, whatever the umask was."""
    before = os.umask(0o077)
    try:
        path = write_rendered(tmp_path / "out", "f", "a", ONE)
    finally:
        os.umask(before)
    modes = [one.stat().st_mode & 0o777 for one in (path, path / "m", path / "m" / "config.pbtxt")]
    assert modes == [0o755, 0o755, 0o644]
    assert (tmp_path / "out" / "f").stat().st_mode & 0o777 == 0o700


def test_only_what_is_needed_stays(tmp_path: Path) -> None:
    kept, gone = (write_rendered(tmp_path, "f", "a", tree) for tree in (ONE, OTHER))
    half_written = kept.parent / ".left"
    half_written.mkdir()
    another_fleets = write_rendered(tmp_path, "g", "a", ONE)
    assert forget_rendered(tmp_path, "f", {str(kept)})
    assert kept.is_dir()
    assert not any(path.exists() for path in (gone, half_written))
    assert not forget_rendered(tmp_path, "f", ())
    assert [path.name for path in tmp_path.iterdir()] == ["g"]
    assert another_fleets.is_dir()


TREE = Tree({"a/config": "text\n", "a/1": Link("/somewhere/1"), "b": "ümlaut"})


def test_what_is_written_is_read_back_and_an_equal_tree_is_not_touched(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "root"
    assert write_tree(root, TREE)
    assert read_tree(root) == TREE
    assert os.readlink(root / "a" / "1") == "/somewhere/1"
    before = root.stat().st_ino
    assert not write_tree(root, TREE)
    assert root.stat().st_ino == before


def test_a_changed_tree_replaces_all_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    other_text, other_link = {"a/config": "other\n"}, {"a/1": Link("/elsewhere/1")}
    for entries in ({**TREE.entries, **other_text}, {**TREE.entries, **other_link}, {"a/config": "text\n"}):
        write_tree(tmp_path / "root", TREE)
        assert write_tree(tmp_path / "root", Tree(entries))
        assert read_tree(tmp_path / "root") == Tree(entries)
        assert [p.name for p in tmp_path.iterdir()] == ["root"]


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_disk_that_refuses_leaves_the_old_tree_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Every write before the change fails in turn: the third fsync or, of the two renames, the second."""
    write_tree(tmp_path / "root", TREE)
    calls = 0
    real = {"fsync": os.fsync, "rename": os.rename}[call]

    def full(*arguments: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*arguments)  # type: ignore[operator]

    monkeypatch.setattr(os, call, full)
    with pytest.raises(EngineError, match="No space left on device"):
        write_tree(tmp_path / "root", Tree({"a/config": "new", "b": "new"}))
    assert read_tree(tmp_path / "root") == TREE
    assert [p.name for p in tmp_path.iterdir()] == ["root"]
