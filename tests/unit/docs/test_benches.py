"""Every bench judges: a run without an aim, or without the data that it needs, does not pass."""

import runpy
import sys
from pathlib import Path

import pytest

from benchmarks.harness import Figures

ROOT = Path(__file__).parents[3]
BENCHES = sorted(p for p in (ROOT / "benchmarks").glob("*/*.py") if "__main__" in p.read_text())


def test_a_run_without_an_aim_or_with_a_missed_one_fails() -> None:
    figures = Figures()
    assert figures.end() == 1
    figures.add("shown", 1.0)
    assert figures.end() == 1
    figures.add("held", 1.0, at_most=1.0)
    assert figures.end() == 0
    figures.add("not taken", float("nan"), at_least=0.0)
    assert figures.end() == 1


@pytest.mark.parametrize("bench", BENCHES, ids=lambda path: path.stem)
def test_a_bench_ends_with_its_figures_and_their_aims(bench: Path) -> None:
    text = bench.read_text()
    assert ".end()" in text
    assert "at_most=" in text or "at_least=" in text


@pytest.mark.parametrize("given", [[], ["--data", "."]])
def test_a_bench_without_its_data_names_the_option(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["unseen", *given])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "benchmarks/times/unseen.py"), run_name="__main__")
    assert ended.value.code == 2
    assert "--data" in capsys.readouterr().err
