"""The comparison of a report's neighbours, on a report made by known laws."""

from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from gpu_kit.read import LATENCY_MODELS, main, rows
from gpu_kit.report import JSON, Ran, Report

pytestmark = pytest.mark.unit

SLOWED = 1.2


def alone_ms(percent: float, batch: int) -> float:
    return 40.0 * batch / (percent + 4.0) + 1.0


@pytest.fixture
def made() -> Report:
    """A model by Eq 11, which each neighbour makes 20 % slower."""
    points = [
        {"percent": percent, "batch": batch, "execution_ms": alone_ms(percent, batch)}
        for percent in (100.0, 50.0, 20.0)
        for batch in (1, 2, 4, 8)
    ]
    beside = [
        {
            "percent": 50.0,
            "batch": batch,
            "neighbours": [{"model": "spin", "percent": 50.0, "batch": other}],
            "execution_ms": noise * SLOWED * alone_ms(50.0, batch),
        }
        for batch in (2, 4)
        for other in (2, 4)
        for noise in (0.98, 1.02)
    ]
    steps = [
        Ran("profile", "done", figures={"points": points}),
        Ran("neighbours", "done", figures={"points": beside}),
    ]
    return Report("2026-11-26", "gpu", "made by two laws", steps)


def test_each_setting_has_its_measured_time_and_both_predictions(made: Report) -> None:
    found = rows(made)
    assert [(row.own, row.beside) for row in found] == [
        (f"50 % batch {own}", f"50 % batch {other}") for own in (2, 4) for other in (2, 4)
    ]
    for row in found:
        assert row.alone_ms is not None
        assert row.measured_ms == pytest.approx(SLOWED * row.alone_ms)
        assert abs(row.error("ours")) < 0.03
        assert row.alone_ms < row.predicted_ms["Eq 1-11"] < 1.15 * row.measured_ms


def test_a_reader_gets_a_line_for_each_setting_and_each_latency_model(
    made: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made.write(tmp_path)
    assert main([str(tmp_path / JSON)]) == 0
    title, _, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("rehearsal: made by two laws")
    assert len(lines) == 4 + len(LATENCY_MODELS)


@pytest.mark.parametrize(("left", "step"), [(5, "profile"), (12, "neighbours")])
def test_a_report_with_too_few_points_names_the_step(made: Report, left: int, step: str) -> None:
    profile, beside = made.steps
    fewer = replace(profile, figures={"points": profile.figures["points"][:left]})
    with pytest.raises(InputError) as refused:
        rows(replace(made, steps=[fewer, *([beside] if step == "profile" else [])]))
    assert refused.value.field == step


def test_another_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.json"
    other.write_text("[]")
    assert main([str(other)]) == 1
    assert str(other) in capsys.readouterr().err
