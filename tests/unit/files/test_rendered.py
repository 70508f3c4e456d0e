from __future__ import annotations

import os
from pathlib import Path

from controlplane.domain.tree import Tree
from controlplane.files.rendered import forget_rendered, write_rendered

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
    of_an_older_version = tmp_path / "f" / "e9f4" / "a"
    of_an_older_version.mkdir(parents=True)
    half_written = kept.parent / ".left"
    half_written.mkdir()
    another_fleets = write_rendered(tmp_path, "g", "a", ONE)
    assert forget_rendered(tmp_path, "f", {str(kept)})
    assert kept.is_dir()
    assert not any(path.exists() for path in (gone, of_an_older_version.parent, half_written))
    assert not forget_rendered(tmp_path, "f", ())
    assert [path.name for path in tmp_path.iterdir()] == ["g"]
    assert another_fleets.is_dir()


def test_what_an_older_version_rendered_stays_while_a_server_reads_it(tmp_path: Path) -> None:
    read = tmp_path / "f" / "e9f4" / "a"
    read.mkdir(parents=True)
    assert forget_rendered(tmp_path, "f", {str(read)})
    assert read.is_dir()
