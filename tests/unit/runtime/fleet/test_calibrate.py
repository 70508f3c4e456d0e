"""What a running fleet teaches, and what it does not."""

import time
from pathlib import Path
from typing import Any, cast

import pytest

from controlplane.domain.device import ShareKind
from controlplane.domain.observation import BatchStatistics
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.files.fleets import FleetFiles
from controlplane.files.measurements.profiles import read_calibration, write_profile
from controlplane.latency.calibration import WIDEST_VARIATION, Observation, Seen
from controlplane.report.tables.observed_table import Kept, Unseen, kept_table, observed_table
from controlplane.report.tables.terminal import plain
from controlplane.runtime import SystemClock
from controlplane.runtime.fleet.calibrate import counting_model, learn, recall, variation_of
from controlplane.runtime.fleet.fleet import Fleet
from controlplane.runtime.fleet.history import History, Minute


def recalled(
    folder: Path, minutes: list[Minute], *partitions: Partition, gpu_type: str = "v100"
) -> tuple[list[Seen], list[Unseen], list[Kept]]:
    """What is recalled of a fleet with these partitions on one GPU."""
    files, nothing = FleetFiles(folder / "state", "f"), cast(Any, None)
    gpus = (PlannedGpu(f"{gpu_type}-0", gpu_type, partitions),)
    files.write_plans(Plan("joint", Rule.P99, "ours", gpus), None)
    now_s = time.time()  # after the plan
    History(files.history).write_minutes([minute._replace(at_s=now_s) for minute in minutes])
    return recall(Fleet(files, nothing, nothing, SystemClock(), print), folder)


def seen(refused: str | None) -> Seen:
    told = Observation("ssd", "v100", ("vgg19",), 10.0, 11.0, 1000, 0.1, 5.0)
    return Seen("W1", 4, 0.5, told, None, refused)


def test_what_is_usable_is_written_for_the_next_plan(tmp_path: Path) -> None:
    assert learn(tmp_path, [seen(None), seen("only 3 batches")]) == tmp_path / "calibration.json"
    (factor,) = read_calibration(tmp_path)
    assert factor.key == ("ssd", "v100", ("vgg19",))
    assert factor.batches == 1000
    assert 1.05 < factor.factor < 1.1, "drawn towards 1 by the prior"


def test_what_is_refused_changes_nothing(tmp_path: Path) -> None:
    assert learn(tmp_path, [seen("the means vary by 80% from one moment to the next")]) is None
    assert list(tmp_path.iterdir()) == []


def test_a_shared_queue_is_one_observation_and_a_p99_a_workload(tmp_path: Path) -> None:
    placements = (
        Placement("W2", "b", "ssd", 40, 60, client_batch=4),
        Placement("W1", "a", "ssd", 60, 50, client_batch=4),
    )
    partition = Partition("P", 50.0, (ServedModel("ssd", 8),), placements)
    counted = {8: BatchStatistics(200, 10**6, 200 * 20 * 10**6, 10**6)}
    minutes = [
        Minute(0.0, 60.0, "P", "a", 50.0, 900, 0, 31.0, counted),
        Minute(0.0, 60.0, "P", "b", 50.0, 600, 2, 33.0, None),
    ]
    seen, unseen, kept = recalled(tmp_path, minutes, partition)
    assert unseen == []
    assert [(row.partition, row.batch, row.observation.batches) for row in seen] == [("P", 8, 200)]
    told = {one.workload: (one.rate_rps, one.failed, one.p99_ms, one.slo_ms) for one in kept}
    assert told == {"W1": (60.0, 0, 31.0, 50.0), "W2": (40.0, 2, 33.0, 60.0)}
    assert {one.planned_rps for one in kept} == {60.0, 40.0}, "inferences, as what is observed"
    assert counting_model(partition, partition.models[0]) == "a", "who counts every execution"


def test_each_model_of_a_partition_is_observed_and_their_times_add_up(tmp_path: Path) -> None:
    both = Partition(
        "P",
        50.0,
        (ServedModel("ssd", 8), ServedModel("vgg19", 2)),
        (Placement("W1", "a", "ssd", 40, 60), Placement("W2", "b", "vgg19", 20, 90)),
    )
    beside = Partition("Q", 50.0, (ServedModel("alexnet", 4),), (Placement("W3", "c", "alexnet", 40, 60),))

    def counted(batch: int, executions: int, each_ms: int) -> dict[int, BatchStatistics]:
        return {batch: BatchStatistics(executions, 0, executions * each_ms * 10**6, 0)}

    minutes = [
        Minute(0.0, 60.0, "P", "a", 50.0, 900, 0, 31.0, counted(8, 300, 40)),
        Minute(0.0, 60.0, "P", "b", 50.0, 600, 0, 33.0, counted(2, 600, 30)),
        Minute(0.0, 60.0, "Q", "c", 50.0, 600, 0, 33.0, counted(4, 600, 10)),
    ]
    seen, unseen, _ = recalled(tmp_path, minutes, both, beside)
    assert unseen == []
    found = {row.observation.model: row for row in seen}
    assert {model: row.batch for model, row in found.items()} == {"ssd": 8, "vgg19": 2, "alexnet": 4}
    assert found["ssd"].busy == found["vgg19"].busy == pytest.approx(0.5)
    assert found["ssd"].observation.neighbours == found["vgg19"].observation.neighbours == ("alexnet",)
    assert found["alexnet"].observation.neighbours == ("vgg19",), "the busier of the two"
    assert found["vgg19"].observation.observed_ms == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("busy", "observed_ms", "batches", "quota", "unmeasured", "refused"),
    [
        (0.03, 3.0, 1000, True, "busy 3% of the time", None),
        (0.03, 3.0, 12, True, "only 12 batches, 30 are needed", None),
        (0.9, 3.0, 1000, True, None, "beyond any error"),
        (0.03, 3.0, 1000, False, None, "beyond any error"),
        (0.9, 9.0, 1000, True, None, None),
    ],
)
def test_who_is_too_idle_is_unmeasured_and_not_mispredicted(
    busy: float, observed_ms: float, batches: int, quota: bool, unmeasured: str | None, refused: str | None
) -> None:
    told = Observation("ssd", "cpu", (), 10.0, observed_ms, batches, 0.1, 5.0)
    row = Seen.of("W1", 4, busy, told, quota=quota, queued=False)
    assert (row.unmeasured or "").startswith(unmeasured or "")
    assert (row.unmeasured is None) is (unmeasured is None)
    assert (row.refused is None) is (unmeasured is None and refused is None)
    assert refused is None or refused in (row.refused or "")
    lines = plain(observed_table([row]))
    assert (f"unmeasured: {unmeasured}" in lines) is (unmeasured is not None)
    assert ("+233" in lines) is (observed_ms == 3.0 and unmeasured is None)


def test_minutes_with_few_answers_have_no_p99(tmp_path: Path) -> None:
    names = {"W1": "a", "W2": "b", "W3-joined-just-now": "c"}
    placements = tuple(Placement(name, endpoint, "ssd", 40, 60) for name, endpoint in names.items())
    partition = Partition("P", 50.0, (ServedModel("ssd", 8),), placements)
    minutes = [
        Minute(0.0, 60.0, "P", "a", 50.0, 7, 0, 480.0, {}),
        Minute(0.0, 60.0, "P", "a", 50.0, 2400, 0, 31.0, {}),
        # A controller that ended, and the next one.
        Minute(0.0, 20.0, "P", "a", 50.0, 20, 0, 9.0, None),
        Minute(0.0, 40.0, "P", "a", 50.0, 13, 0, 9.0, None),
        Minute(0.0, 60.0, "P", "b", 50.0, 104, 5, 500.0, None),
    ]
    _, unseen, kept = recalled(tmp_path, minutes, partition)
    busy, idle, joined = kept
    assert (joined.minutes, joined.rate_rps, joined.unmeasured) == (0, None, "no minute was recorded yet")
    assert unseen == [Unseen("P", "no batch was executed")]
    assert "unmeasured: no batch was executed" in plain(observed_table([], unseen))
    assert (busy.p99_ms, busy.worst_p99_ms, busy.unmeasured) == (31.0, 31.0, None)
    assert (busy.minutes, busy.rate_rps) == (3, 2440 / 180)
    assert (idle.p99_ms, idle.worst_p99_ms) == (None, None)
    assert "unmeasured: at most 99 answers a minute, 100 are needed" in plain(kept_table([busy, idle]))


def test_a_drift_of_some_percent_is_no_variation_however_many_batches_a_minute_has() -> None:
    drift = [(20.0, 500), (21.0, 500), (20.0, 500), (21.0, 500)]
    assert variation_of(drift) == pytest.approx(0.028, abs=0.001)
    stalled = [(20.0, 30)] * 10 + [(400.0, 3)]
    assert variation_of(stalled) > WIDEST_VARIATION
    assert variation_of(drift[:1]) == 0.0, "one window tells nothing"


@pytest.mark.parametrize(
    ("predicted_ms", "queued", "unmeasured"),
    [
        (30.0, True, None),
        (30.0, False, "busy 45% of the time, and a batch that waits for no other runs on quota"),
        (15.0, True, "busy 45% of the time, and a batch that is shorter than 20 ms runs on quota"),
    ],
)
def test_a_long_batch_that_waited_for_another_is_measured_at_any_load(
    predicted_ms: float, queued: bool, unmeasured: str | None
) -> None:
    told = Observation("ssd", "cpu", (), predicted_ms, 1.1 * predicted_ms, 400, 0.1, 5.0)
    row = Seen.of("W1", 4, 0.45, told, quota=True, queued=queued)
    assert (row.unmeasured or "").startswith(unmeasured or "")
    assert (row.refused is None) is (unmeasured is None)


def test_a_core_at_its_planned_rate_teaches_by_the_batches_that_waited(tmp_path: Path) -> None:
    points = [
        Measurement(percent=p, batch=b, execution_ms=100.0 / p * (4.0 + 6.0 * b))
        for p in (20.0, 50.0, 100.0)
        for b in (1, 2, 4, 8)
    ]
    write_profile(tmp_path, Profile("m", "cpu", ShareKind.CPU_QUOTA, Environment(), tuple(points)))
    partition = Partition(
        "P", 50.0, (ServedModel("m", 8),), (Placement("W", "w", "m", 20, 300, client_batch=2),)
    )
    # Busy 45 % of the time: a request that met an idle server ran faster than its share.
    millis = {2: (600, 20.0), 4: (150, 67.0), 8: (60, 125.0)}
    counted = {b: BatchStatistics(n, 0, int(n * ms * 1e6), 0) for b, (n, ms) in millis.items()}
    minute = Minute(0.0, 66.0, "P", "w", 50.0, 1000, 0, 90.0, counted)
    seen, _, _ = recalled(tmp_path, [minute], partition, gpu_type="cpu")
    taught = {row.batch: row.refused is None for row in seen}
    assert taught == {2: False, 4: True, 8: True}
    learn(tmp_path, seen)
    (factor,) = read_calibration(tmp_path)
    assert 1.05 < factor.factor < 1.2
    assert factor.batches == 210
