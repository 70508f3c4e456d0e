"""A file's content is remembered while the file is surely the same."""

from __future__ import annotations

import os
from pathlib import Path

from controlplane.files.reading import Remembered

OLD_NS = 10**18


def test_only_a_file_that_may_have_changed_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "f"
    read: list[str] = []

    def make() -> str:
        read.append(file.read_text() if file.exists() else "none")
        return read[-1]

    remembered = Remembered(file, make)
    assert [remembered.get(), remembered.get()] == ["none", "none"]
    file.write_text("one")
    assert remembered.get() == "one"
    file.write_text("two")
    assert remembered.get() == "two", "written within the same grain of time, perhaps"
    os.utime(file, ns=(OLD_NS, OLD_NS))
    read.clear()
    assert [remembered.get() for _ in range(3)] == ["two"] * 3
    assert len(read) == 1
    file.write_text("three")
    assert remembered.get() == "three"
    file.unlink()
    assert remembered.get() == "none"
