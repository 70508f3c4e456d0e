"""The lines of `ctl profile` about a model."""

from __future__ import annotations

from pathlib import Path

from controlplane.domain.profile import AnswerTimes
from controlplane.report.tables.plan_table import counted


def written_line(path: Path, points: int, seconds: float, error: float | None) -> str:
    """Return the line about a written profile; `error` is that of Eq 11 on held-out points (0.05 is 5 %)."""
    fit = "" if error is None else f", Eq 11 is off by {100 * error:.1f} % on held-out points"
    return f"{path}: {counted(points, 'point')} written after {seconds:.0f} s{fit}"


def missing_line(model: str, missing: int, words: str) -> str:
    """Return the warning about a profile without some of its points."""
    return (
        f"warning: {model}: {counted(missing, 'point')} failed: {words}; plans use what was measured, and "
        "the same command measures the rest"
    )


def left_out_line(model: str, left_out: int) -> str:
    """Return the line about a model that was measured at fewer points because it is slow."""
    return (
        f"{model}: too slow for {counted(left_out, 'more point')} within the budget: a larger --budget, or "
        "--percents and --batches, measures more"
    )


def answers_line(model: str, answers: AnswerTimes) -> str:
    """Return the line about a decoupled model's answers to a request that is alone."""
    return f"{model}: first answer after {answers.first_ms:.1f} ms, last after {answers.last_ms:.1f} ms"


def refused_line(model: str, words: str, file: str | None) -> str:
    """Return the line about a model whose server refused a request; `file` has its inputs, if given."""
    if file is not None:
        return f"{model}: not profiled: its server refused an input of {file}: {words}"
    return (
        f"{model}: not profiled: its server refused a generated input: {words}; give inputs that it takes: "
        f"--input-data {model}:FILE (perf_analyzer's JSON)"
    )


def failed_line(model: str, words: str) -> str:
    """Return the line about a model that could not be measured."""
    return f"{model}: not profiled: {words}"


def spinning_line(model: str, percent: float, of_percent: float, cost: float, slowdown: float) -> str:
    """Return the warning about a model whose threads waste its CPU quota, with the way out."""
    return (
        f"{model}: its threads waste its CPU quota: at {percent:g} % an inference takes {cost:.1f} times the "
        f"processor time that it takes at {of_percent:g} %, and up to {slowdown:.1f} times as long, where "
        f"{of_percent / percent:.1f} times is to be expected; set intra_op_num_threads to 1 and "
        "session.intra_op.allow_spinning to 0 (onnxruntime), or OMP_NUM_THREADS=1, and profile it again"
    )
