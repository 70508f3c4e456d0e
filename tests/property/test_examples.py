"""The examples of the other tests here: the same whatever else is imported, as each has passed on them."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st


def drawn() -> list[object]:
    found: list[object] = []

    @given(st.floats(0.0, 1e9), st.integers(0, 10**9), st.text())
    def note(real: float, whole: int, text: str) -> None:
        found.append((real, whole, text))

    note()
    return found


def test_no_modules_literals_are_among_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = drawn()
    made = ModuleType("imported_meanwhile")
    (tmp_path / "imported_meanwhile.py").write_text(f"NUMBERS = {[n + 0.25 for n in range(100, 400)]}\n")
    made.__file__ = str(tmp_path / "imported_meanwhile.py")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    assert len(before) == 100
    assert drawn() == before
