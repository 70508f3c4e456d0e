"""A fleet that follows its load, as a user walks it: real Tritons, gateway and client, no failed request."""

from collections.abc import Iterator
from pathlib import Path

import following_rig as rig
import pytest
from background import until
from ctl_fleet import Ctl
from following_rig import MODEL, PERCENT
from sleeping_triton import EACH_MS, FIXED_MS, ahead_of_others

from controlplane.files.measurements.profiles import read_calibration

BATCHES_S, PLAN_S, BACK_S, REVIEW_S = 60.0, 90.0, 120.0, 120.0
"""Deadlines of a shared host; what the control needs is in docs/results/changing-load.md."""
WRONG, RIGHT = 0.8, 0.05
LEARNING_RPS, LEARNING_SLO_MS = 58.0, 1000.0
FAR_WRONG, BROKEN_RPS, BROKEN_SLO_MS, AT_ONCE_S = 0.3, 75.0, 60.0, 60.0
WINDOWS = 3


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Ctl]:
    with rig.following_host(tmp_path) as here:
        yield here


def test_a_doubled_rate_is_followed_and_no_request_fails(host: Ctl) -> None:
    (doubled,) = rig.followed(host, [(50.0, BATCHES_S)])
    # Mostly another batch alone; a smeared step may pass for the begin of a ramp, which takes a core more.
    batches, cores = ({one[at] for one in doubled.layout} for at in (2, 0))
    assert batches == {2} or len(cores) == 2, "single requests of one core hold 25/s, not 50"
    assert any("25/s planned: " in reason for reason in doubled.events)


@pytest.mark.soak
def test_a_doubled_rate_changes_batches_a_tripled_one_servers_and_back(host: Ctl) -> None:
    steps = rig.followed(host, [(50.0, BATCHES_S), (85.0, PLAN_S), (20.0, BACK_S)])
    assert steps[0].layout == [("cpu-0", PERCENT, 2)], "the share stays"
    cores = [{gpu for gpu, _, _ in step.layout} for step in steps]
    assert [len(used) for used in cores] == [1, 2, 1]
    assert {host.await_event("free", deadline_s=20.0).subject} == cores[1] - cores[2]


def test_a_profile_that_is_a_fifth_wrong_is_learned_and_the_next_plan_is_right(host: Ctl) -> None:
    shares, batches = (20.0, 40.0, 60.0, 80.0, 100.0), (1, 2)
    rig.profile(host, {(p, b): WRONG * (FIXED_MS + EACH_MS * b + 2.0) for p in shares for b in batches})
    rig.applied(host, rig.planned(host, LEARNING_RPS, LEARNING_SLO_MS), "--no-controller")
    before_ms = execution_ms(host)
    with rig.loaded(host, LEARNING_RPS) as load, rig.brief_controller(host):
        asked = host.await_event("load", says="review of the execution times", deadline_s=REVIEW_S)
        since_s = asked.at_s - 1.0
        host.await_event("apply", says="following the load", since_s=since_s, deadline_s=REVIEW_S)
        learned = execution_ms(host) / before_ms
        # A window in which the host stood still says nothing.
        seen = (seen_of_profile(host) for _ in range(WINDOWS))
        assert any(abs(learned / times - 1.0) < RIGHT < abs(1.0 / times - 1.0) for times in seen)
    assert load.failed() == []
    (factor,) = read_calibration(host.directory / "profiles")
    assert (factor.model, factor.neighbours) == (MODEL.name, ())


def test_an_error_that_breaks_a_promise_is_learned_at_once_and_not_at_the_next_review(host: Ctl) -> None:
    # Whole cores: what runs before other work on the host has no group for a quota.
    rig.profile(host, {(100.0, b): FAR_WRONG * (FIXED_MS + EACH_MS * b + 2.0) for b in (1, 2)})
    planned = rig.planned(host, BROKEN_RPS, BROKEN_SLO_MS)
    # What other work on the host takes is no error of the model, and here nothing but the model is judged.
    with ahead_of_others():
        rig.applied(host, planned)
        assert len(rig.layout(host)) == 1
        with rig.loaded(host, BROKEN_RPS) as load:
            found = host.await_event("notice", says="a plan with the learned times", deadline_s=AT_ONCE_S)
            host.await_event("apply", says="following the load", since_s=found.at_s, deadline_s=AT_ONCE_S)
            # The first batches may show but a part of the error: what follows is learned as soon.
            until(lambda: len(rig.layout(host)) > 1, AT_ONCE_S, "a second server, which the true times need")
    assert load.failed() == []
    print(
        [(round(e.at_s - found.at_s, 1), e.kind, e.subject, e.reason) for e in host.events()],
        rig.layout(host),
    )


def execution_ms(host: Ctl) -> float:
    """What the plan that runs says of a batch of its one server."""
    ((workload,),) = (p["workloads"] for g in rig.plan(host)["gpus"] for p in g["partitions"])
    return float(workload["predicted"]["execution_ms"])


def seen_of_profile(host: Ctl) -> float:
    """The times of full batches in the next seconds, as a part of what the profile predicts."""
    profiles = str(host.directory / "profiles")
    done = host.document("validate", "--profiles", profiles, "--seconds", "8", "--calibrate")
    (full,) = (row for row in done["observed"] if row["batch"] == MODEL.batch)
    return float(full["observed_ms"] / full["predicted_ms"])
