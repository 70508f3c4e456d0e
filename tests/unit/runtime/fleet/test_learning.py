"""What a fleet learns while it serves, and the plan that follows."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from planning import StoppedClock

from controlplane.control.autoscaler.state import Direction, Kind, Proposal, Propose
from controlplane.domain.device import Stock
from controlplane.domain.observation import BatchStatistics
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel, Source
from controlplane.files import catalogue
from controlplane.files.fleets import FleetFiles
from controlplane.files.measurements.profiles import read_calibration
from controlplane.files.plans import read_plan, read_spec
from controlplane.latency import registry
from controlplane.latency.protocol import Slots
from controlplane.runtime.autoscaler.search import prepare, proposal
from controlplane.runtime.fleet.calibrate import learn_recorded
from controlplane.runtime.fleet.history import History, Minute
from controlplane.runtime.jobs.plan import Choices, explain_workload, make_plan, mean_execution_ms

pytestmark = pytest.mark.slow

SPEC = """
schema_version: 1
gpus: [{type: v100, price_per_hour: 3.06}]
workloads: [{name: W, model: ssd, slo_ms: 60, rate_rps: 150, shadow: {policy: none}}]
"""
SLOWER = 1.2


@dataclass
class Fleet:
    """A fleet with one partition; what it executes takes `SLOWER` times what its profile says."""

    files: FleetFiles
    now_s: float = 2e9

    @property
    def plan(self) -> Plan:
        plan = self.files.plan()
        assert plan is not None
        return plan

    def mean_ms(self, percent: float, batch: int) -> float:
        """The uncorrected prediction of the mean time of a batch."""
        kind, profiles = catalogue.device("v100"), catalogue.profiles("v100")
        assert kind is not None
        latency = registry.build("ours", kind, profiles)
        slots = Slots.alone([latency.models.index("ssd")], [batch], [percent])
        return float(latency.estimate(slots).execution_ms[0, 0])

    def serve(self, minutes: int, percent: float) -> None:
        """Minutes of full batches at a share, as the controller records them."""
        (_, partition), *_ = self.plan.partitions()
        batch = partition.models[0].batch
        each_ns = round(SLOWER * self.mean_ms(percent, batch) * 1e6)
        for _ in range(minutes):
            self.now_s += 60.0
            counted = {batch: BatchStatistics(600, 0, 600 * each_ns, 0)}
            minute = Minute(self.now_s, 60.0, partition.id, "ssd", percent, 600, 0, 50.0, counted)
            History(self.files.history).write_minutes([minute])

    def review(self, direction: Direction = Direction.REVIEW) -> Proposal:
        rate = sum(w.rate_rps for _, _, w in self.plan.placements())
        asked = Propose(1, direction, (rate,), "review")
        return proposal(self.files, asked, ["W"], Stock({"v100": 2}), self.now_s)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    (tmp_path / "spec.yaml").write_text(SPEC)
    spec, document = read_spec(tmp_path / "spec.yaml")
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    plan = make_plan(spec, document, Choices("joint"), profiles=profiles, cores=2, clock=StoppedClock()).plan
    files = FleetFiles(tmp_path / "state", "f")
    files.directory.mkdir(parents=True)
    files.write_plans(plan, None)
    files.following.keep_profiles(profiles)
    return Fleet(files)


def test_a_profile_a_fifth_too_fast_is_predicted_within_5_percent_after_two_redirects(
    fleet: Fleet, tmp_path: Path
) -> None:
    (_, before), *_ = fleet.plan.partitions()
    for percent in (before.percent, before.percent + 10.0, before.percent + 20.0):
        fleet.serve(1, percent)
    found = fleet.review()
    assert found.error == pytest.approx(SLOWER - 1.0, rel=0.1)
    assert found.summary.startswith("execution times are up to ")
    plan, _ = read_plan(fleet.files.following.proposal)
    assert plan.verified
    learned_ms = mean_execution_ms(plan, fleet.files.following.profiles)
    profile_ms = mean_execution_ms(plan, tmp_path)
    for partition, predicted_ms in learned_ms.items():
        assert predicted_ms == pytest.approx(SLOWER * profile_ms[partition], rel=0.05)
    assert {w.predicted.source for _, _, w in plan.placements()} == {Source.LEARNED}


def test_a_second_review_finds_the_plan_right_and_counts_no_minute_twice(fleet: Fleet) -> None:
    (_, partition), *_ = fleet.plan.partitions()
    fleet.serve(3, partition.percent)
    fleet.review()
    (learned,) = read_calibration(fleet.files.following.profiles)
    plan, _ = read_plan(fleet.files.following.proposal)
    fleet.files.write_plans(plan, None)
    again = fleet.review()
    assert read_calibration(fleet.files.following.profiles) == (learned,)
    assert (again.kind, again.error) == (Kind.HOLD, pytest.approx(0.0, abs=1e-9))
    (_, partition), *_ = fleet.plan.partitions()
    fleet.serve(1, partition.percent)
    fleet.review()
    (more,) = read_calibration(fleet.files.following.profiles)
    assert more.batches == learned.batches + 600


def test_a_quiet_workload_learns_beside_a_busy_one(tmp_path: Path) -> None:
    files = FleetFiles(tmp_path / "state", "f")
    names = {"ssd": "busy", "vgg19": "quiet"}
    partitions = tuple(
        Partition(name, 50.0, (ServedModel(model, 4),), (Placement(name, name, model, 10.0, 500.0),))
        for model, name in names.items()
    )
    files.write_plans(Plan("joint", Rule.P99, "ours", (PlannedGpu("v100-0", "v100", partitions),)), None)
    files.following.profiles.mkdir(parents=True)
    now_s = 2e9
    learned: list[dict[str, int]] = []
    for _ in range(3):
        for name, executions in (("busy", 600), ("quiet", 12)):
            now_s += 1.0
            counted = {4: BatchStatistics(executions, 0, executions * 25_000_000, 0)}
            minute = Minute(now_s, 60.0, name, name, 50.0, executions, 0, 50.0, counted)
            History(files.history).write_minutes([minute])
        learn_recorded(files, now_s)
        known = read_calibration(files.following.profiles)
        learned.append({names[factor.model]: factor.batches for factor in known})
    assert learned == [{"busy": 600}, {"busy": 1200}, {"busy": 1800, "quiet": 36}]


def test_an_explanation_says_how_each_time_is_known(fleet: Fleet) -> None:
    def said() -> str:
        found = explain_workload(fleet.plan, "W", fleet.files.following.profiles)
        assert isinstance(found, tuple)
        return found[0].reasons[2]

    (_, partition), *_ = fleet.plan.partitions()
    assert said().startswith(("execution time: measured at", "execution time: predicted by"))
    fleet.serve(3, partition.percent)
    assert learn_recorded(fleet.files, fleet.now_s) is not None
    assert said() == (
        "execution time: learned from 1800 batches of running fleets beside no neighbour: "
        "1.19 times what the latency model 'ours' predicts"
    )


def test_without_executions_nothing_is_learned(fleet: Fleet) -> None:
    found = fleet.review()
    assert found.error == pytest.approx(0.0, abs=1e-9)
    assert read_calibration(fleet.files.following.profiles) == ()


def test_an_increase_waits_for_no_learning_which_its_preparation_has_done(
    fleet: Fleet,
) -> None:
    (_, partition), *_ = fleet.plan.partitions()
    fleet.serve(3, partition.percent)
    fleet.review(Direction.UP)
    assert read_calibration(fleet.files.following.profiles) == ()
    prepare(fleet.files)
    assert len(read_calibration(fleet.files.following.profiles)) == 1


def test_a_broken_record_prevents_no_plan(fleet: Fleet) -> None:
    fleet.files.history.write_text("no database")
    found = fleet.review()
    assert found.kind == Kind.HOLD
    assert "; nothing was learned: " in found.summary
