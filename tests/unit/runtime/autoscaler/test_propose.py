"""The plan with which a fleet follows its load."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from planning import StoppedClock

from controlplane.control.autoscaler.state import Direction, Kind, Propose
from controlplane.control.guard.effects import Learn
from controlplane.domain.device import ShareKind, Stock
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.files.fleets import FleetFiles
from controlplane.files.measurements.profiles import write_profile
from controlplane.files.plans import plan_hash, read_plan, read_spec
from controlplane.runtime.autoscaler.propose import propose
from controlplane.runtime.jobs.plan import Choices, make_plan

pytestmark = pytest.mark.slow

SPEC = """
schema_version: 1
gpus: [{type: cpu}]
workloads: [{name: W, model: m, slo_ms: 300, rate_rps: 25}]
"""


STOCK = Stock({"cpu": 2})


def asked(direction: Direction, rate_rps: float) -> Propose:
    return Propose(1, direction, (rate_rps,), "asked")


@pytest.fixture
def files(tmp_path: Path) -> FleetFiles:
    """A fleet on a host of which two cores may be planned."""
    points = [
        Measurement(percent, batch, ms, capacity_rps=1000.0 * batch / ms)
        for percent in (20.0, 60.0, 100.0)
        for batch in (1, 2)
        for ms in ((17.0 + 2.5 * batch) * 100.0 / percent,)
    ]
    profiles = tmp_path / "profiles"
    write_profile(
        profiles, Profile("m", "cpu", ShareKind.CPU_QUOTA, Environment(), tuple(points), max_batch=2)
    )
    (tmp_path / "spec.yaml").write_text(SPEC)
    spec, document = read_spec(tmp_path / "spec.yaml")
    plan = make_plan(spec, document, Choices("joint"), profiles=profiles, cores=3, clock=StoppedClock()).plan
    found = FleetFiles(tmp_path / "state", "f")
    found.directory.mkdir(parents=True)
    found.write_plans(plan, None)
    found.following.keep_profiles(profiles)
    return found


def test_a_higher_rate_gets_a_plan_in_the_fleets_state(files: FleetFiles) -> None:
    answer = propose(files, asked(Direction.UP, 110.0), ["W"], STOCK)
    plan, _ = read_plan(files.following.proposal)
    assert (answer.kind, answer.unheld) == (Kind.PLAN, ())
    (rate,) = answer.rates_rps
    assert rate >= 110.0, "for all that the cores hold"
    assert sum(w.rate_rps for _, _, w in plan.placements()) == pytest.approx(rate)
    assert plan.verified
    before = files.plan()
    assert before is not None
    assert plan.spec_sha256 == before.spec_sha256
    assert answer.made_from == plan_hash(before)


def test_an_error_that_the_guard_found_is_in_the_plan_that_is_proposed(files: FleetFiles) -> None:
    def execution_ms() -> float:
        plan, _ = read_plan(files.following.proposal)
        _, partition, placement = next(iter(plan.placements()))
        return placement.predicted.batch_ms[0] * partition.percent

    propose(files, asked(Direction.REVIEW, 25.0), ["W"], STOCK)
    before_ms = execution_ms()
    slower = replace(asked(Direction.REVIEW, 25.0), errors=(Learn("m", "cpu", 1.2),))
    for _ in range(2):  # it is the plan's error, so it counts once
        assert propose(files, slower, ["W"], STOCK).error == pytest.approx(0.2, abs=0.01)
        assert execution_ms() == pytest.approx(1.2 * before_ms, rel=0.01)


def test_where_no_plan_keeps_the_slo_with_the_learned_times_the_least_late_one_is_proposed(
    files: FleetFiles,
) -> None:
    slower = replace(asked(Direction.REVIEW, 25.0), errors=(Learn("m", "cpu", 6.0),))
    answer = propose(files, slower, ["W"], STOCK)
    plan, _ = read_plan(files.following.proposal)
    (subject,) = {one.subject for one in plan.violations}
    assert (answer.kind, answer.rates_rps, subject, subject in answer.summary) == (
        Kind.PLAN,
        (25.0,),
        "W",
        True,
    )
    predicted = [(w.slo_ms, w.predicted.p99_ms) for _, _, w in plan.placements()]
    assert len(predicted) == 2, "one core cannot even carry the rate"
    assert all(slo == 300.0 < p99 < 5 * 300.0 for slo, p99 in predicted)
    files.write_plans(plan, files.plan())
    again = propose(files, slower, ["W"], STOCK)
    assert again.kind is Kind.NONE, "it runs already"


def test_what_no_plan_can_carry_is_left_as_it_runs(files: FleetFiles) -> None:
    slower = replace(asked(Direction.REVIEW, 25.0), errors=(Learn("m", "cpu", 20.0),))
    assert propose(files, slower, ["W"], STOCK).kind is Kind.NONE
    assert not files.following.proposal.exists()


def test_what_this_host_cannot_hold_is_planned_as_far_as_it_can(files: FleetFiles) -> None:
    answer = propose(files, asked(Direction.UP, 5000.0), ["W"], STOCK)
    (unheld,) = answer.unheld
    assert unheld.workload == "W"
    assert 25.0 <= unheld.planned_rps <= answer.rates_rps[0] < 300.0
    plan, _ = read_plan(files.following.proposal)
    assert len(plan.gpus) <= 2, "one core stays free"


def test_a_cluster_plans_with_nodes_to_come_and_keeps_the_plan_without_them(files: FleetFiles) -> None:
    running = files.plan()
    assert running is not None
    counted = SPEC.replace("{type: cpu}", "{type: cpu, count: 4, node_selector: {pool: a}}")
    code = hashlib.sha256(counted.encode()).hexdigest()
    files.write_plans(replace(running, spec=counted, spec_sha256=code), None)
    grows = Stock({"cpu": 2}, grows=True)
    answer = propose(files, asked(Direction.UP, 260.0), ["W"], grows)
    assert answer.unheld == ()
    more, _ = read_plan(files.following.proposal)
    less, _ = read_plan(files.following.without_more)
    assert len(less.gpus) <= 2 < len(more.gpus)
    assert all(gpu.node_selector == {"pool": "a"} for gpu in (*more.gpus, *less.gpus))
    propose(files, asked(Direction.UP, 60.0), ["W"], grows)
    assert not files.following.without_more.exists(), "there is nothing to wait for"


def test_a_plan_for_bursts_is_followed_by_plans_for_bursts(files: FleetFiles) -> None:
    running = files.plan()
    assert running is not None
    gpu = running.gpus[0]
    bursty = tuple(replace(w, dispersion=2.0) for w in gpu.partitions[0].workloads)
    partition = replace(gpu.partitions[0], workloads=bursty)
    files.write_plans(replace(running, gpus=(replace(gpu, partitions=(partition,)),)), None)
    propose(files, asked(Direction.UP, 60.0), ["W"], STOCK)
    plan, _ = read_plan(files.following.proposal)
    assert {w.dispersion for _, _, w in plan.placements()} == {2.0}


def test_less_load_on_one_core_is_no_cheaper(files: FleetFiles) -> None:
    answer = propose(files, asked(Direction.DOWN, 5.0), ["W"], STOCK)
    assert answer.kind == Kind.HOLD
    assert answer.cost_after == answer.cost_before


def test_a_plan_without_a_spec_says_what_is_missing(files: FleetFiles) -> None:
    plan = files.plan()
    assert plan is not None
    files.write_plans(replace(plan, spec=None), None)
    with pytest.raises(InputError, match="has no spec"):
        propose(files, asked(Direction.UP, 50.0), ["W"], STOCK)
