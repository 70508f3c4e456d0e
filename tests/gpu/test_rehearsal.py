"""The kit's steps on fakes of a GPU, and on a core. Nothing here ran on a GPU."""

import os
from pathlib import Path

import pytest
from fake_gpu_host import kit, without_cgroups

from gpu_kit.report import TEXT, Report
from gpu_kit.run import LIMITS_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_every_step_ends_on_the_fakes(rehearsal: Report) -> None:
    """Where this host's PyTorch finds no GPU, its step has no meaning."""
    assert rehearsal.held
    ended = {step.name: (step.outcome, step.reason) for step in rehearsal.steps if step.name != "torch"}
    assert ended == dict.fromkeys(LIMITS_S.keys() - {"torch"}, ("done", ""))


def test_a_batch_changes_in_the_servers_that_run(rehearsal: Report) -> None:
    assert rehearsal.figures("serve")["batch_changed_live"]["same_servers"]


def test_the_fakes_shares_are_seen_by_the_kernels_and_through_triton(rehearsal: Report) -> None:
    assert rehearsal.figures("kernels")["times_as_long_at_20"] > 3.0
    assert rehearsal.figures("profile")["times_as_long_at_20"] > 1.3


def test_a_server_slowed_down_is_redirected_without_a_lost_request(rehearsal: Report) -> None:
    assert rehearsal.figures("serve")["repair"]["redirected_s"] < 30.0
    assert rehearsal.figures("serve")["requests_lost"] == 0


def test_a_process_beyond_its_memory_limit_is_refused(rehearsal: Report) -> None:
    assert rehearsal.figures("memory")["beyond_the_limit"].startswith("refused")


def test_the_fault_of_one_client_ends_the_others_and_the_gpu_serves_again(rehearsal: Report) -> None:
    figures = rehearsal.figures("crash")
    assert [figures["crashed"][:6], *(one[:6] for one in figures["beside_it"])] == ["failed"] * 4
    assert figures["fault_seen"]
    assert figures["serves_again_s"] > 0.0


def test_the_mps_daemon_answers_its_user(rehearsal: Report) -> None:
    assert rehearsal.figures("mps")["own_daemon"]["get_server_list"] == "nothing"


def test_a_core_in_a_gpus_place_has_no_mps_and_the_report_says_rehearsal(tmp_path: Path) -> None:
    """The server is slowed without a quota, which only root can set."""
    own = without_cgroups() if os.getuid() == 0 else ()
    steps = ("--short", "--device", "cpu", "--only", "host,mps,kernels,serve")
    report = kit(os.environ, tmp_path, *steps, within=own)
    assert {step.name: step.outcome for step in report.steps} == {
        "host": "done",
        "mps": "not run",
        "kernels": "not run",
        "serve": "done",
    }, report.text()
    assert report.figures("serve")["repair"]["redirected_s"] < 30.0
    assert report.figures("serve")["requests_lost"] == 0
    assert "rehearsal" in (tmp_path / TEXT).read_text()
