"""What `ctl simulate` takes and what it refuses."""

from pathlib import Path

import build
import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Prediction, Rule, ServedModel
from controlplane.runtime.jobs.simulate import Asked, run


def plan(rate_rps: float) -> Plan:
    return build.plan(build.partition("P", 50.0, "W1", model="ssd", batch=4, rate_rps=rate_rps, slo_ms=100.0))


def test_more_requests_than_anybody_waits_for_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--seconds: 5e\+09 requests .* shorter time"):
        run(plan(50.0), Asked(tmp_path, None, [], 1e8, 1))
    told = run(plan(50.0), Asked(tmp_path, "ours*1.", [], 2.0, 1))
    assert told.workloads[0].requests > 50


@pytest.mark.parametrize(
    ("truth", "says"),
    [
        ("ours*1.2.3", "--truth: 'ours.*' is neither a latency model"),
        ("ours*.", "--truth: 'ours.*' is neither a latency model"),
        ("ours*0", "greater than 0"),
        ("{folder}", "--truth: has no profile of v100"),
    ],
)
def test_a_truth_that_is_none_is_named(tmp_path: Path, truth: str, says: str) -> None:
    asked = truth.format(folder=tmp_path)
    with pytest.raises(InputError, match=says):
        run(plan(50.0), Asked(tmp_path, asked, [], 1.0, 1))


def test_arrivals_that_are_no_text_are_named(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"trace\.csv: is not UTF-8"):
        run(plan(50.0), Asked(tmp_path, None, [str(trace)], 1.0, 1))


def test_an_order_that_a_plan_relies_on_is_simulated_without_an_option(tmp_path: Path) -> None:
    """Beside long requests, short ones that go first wait for one of them at most."""

    def p99_ms(*ranks: int | None) -> float:
        placed = (
            Placement("s", "s", "alexnet", 100.0, 1000.0, predicted=Prediction(execution_ms=3.0)),
            Placement("l", "l", "vgg19", 40.0, 1000.0, predicted=Prediction(execution_ms=20.0)),
        )
        models = tuple(ServedModel(w.model, 1, rank=rank) for w, rank in zip(placed, ranks, strict=True))
        gpus = (PlannedGpu("v100-0", "v100", (Partition("P", 20.0, models, placed),)),)
        found = run(Plan("by-hand", Rule.P99, "ours", gpus), Asked(tmp_path, None, [], 60.0, 1))
        return next(w.p99_ms for w in found.workloads if w.name == "s")

    assert p99_ms(0, 1) < 0.8 * p99_ms(1, 0)
