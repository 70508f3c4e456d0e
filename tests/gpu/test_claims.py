"""What the README says of GPUs, each a test, by the kit's report. Collected only where there is a GPU."""

import pytest

from controlplane.domain.profile import Measurement
from controlplane.papers.igniter import latency as igniter
from gpu_kit.report import Report

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1800)]


def test_every_step_of_the_kit_ends(report: Report) -> None:
    assert {step.name: step.reason for step in report.steps if step.outcome != "done"}.keys() <= {"torch"}


def test_a_share_of_a_gpu_is_enforced(report: Report) -> None:
    assert report.figures("kernels")["times_as_long_at_50"] > 1.5
    assert report.figures("kernels")["times_as_long_at_20"] > 3.0


def test_a_share_is_enforced_through_triton(report: Report) -> None:
    times = report.figures("profile")
    assert times["times_as_long_at_20"] > times["times_as_long_at_50"] > 1.3


def test_equation_11_describes_a_model_on_this_gpu(report: Report) -> None:
    points = report.figures("profile")["points"]
    measured = [Measurement(p["percent"], p["batch"], p["execution_ms"]) for p in points]
    assert igniter.fit_curve(measured, "spin").holdout_error < 0.15


def test_a_neighbour_with_its_own_share_costs_less_than_half(report: Report) -> None:
    alone = {(p["percent"], p["batch"]): p["execution_ms"] for p in report.figures("profile")["points"]}
    beside = [p for p in report.figures("neighbours")["points"] if (p["percent"], p["batch"]) in alone]
    assert beside
    assert all(p["execution_ms"] < 1.5 * alone[p["percent"], p["batch"]] for p in beside)


def test_a_planned_model_keeps_its_p99_latency(report: Report) -> None:
    assert all(row["p99_ms"] <= row["slo_ms"] for row in report.figures("serve")["workloads"])


def test_the_traffic_of_a_slow_server_moves_to_its_shadow_and_no_request_is_lost(report: Report) -> None:
    assert report.figures("serve")["repair"]["redirected_s"] < 10.0
    assert report.figures("serve")["requests_lost"] == 0


def test_a_limit_of_memory_is_enforced(report: Report) -> None:
    assert report.figures("memory")["beyond_the_limit"].startswith("refused")


def test_a_gpu_serves_again_after_a_fatal_exception(report: Report) -> None:
    assert report.figures("crash")["crashed"].startswith("failed")
    assert report.figures("crash")["serves_again_s"] < 60.0
