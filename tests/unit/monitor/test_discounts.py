"""Clients' counters on the page of metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.files.gateway import discounts
from controlplane.files.gateway.discounts import add_discounts
from controlplane.monitor.discounts import ClientsCounters

LABELS = 'model="m",version="1"'


def asked(folder: Path, times: int) -> None:
    stats = {"success": {"count": times, "ns": 2_000 * times}, "fail": {"count": times, "ns": 0}}
    add_discounts(
        folder,
        "s",
        [
            {
                "name": "m",
                "version": "1",
                "inference_count": times,
                "execution_count": times,
                "inference_stats": stats,
            }
        ],
    )


def shown(counters: ClientsCounters, name: str, value: str, labels: str = LABELS) -> str:
    return counters.value("s", counters.of("s"), name, labels, value)


def test_what_the_fleet_asked_is_left_out(tmp_path: Path) -> None:
    counters = ClientsCounters(tmp_path)
    asked(tmp_path, 3)
    assert shown(counters, "nv_inference_request_success", "5") == "2"
    assert shown(counters, "nv_inference_exec_count", "5") == "2"
    assert shown(counters, "nv_inference_request_duration_us", "10") == "4"
    assert shown(counters, "nv_inference_request_summary_us_count", "5") == "2"
    assert shown(counters, "nv_inference_request_summary_us_sum", "10") == "4"
    assert shown(counters, "nv_inference_request_success", "5", 'model="other",version="1"') == "5"
    assert shown(counters, "nv_gpu_utilization", "0.25", "") == "0.25"


@pytest.mark.parametrize(("reason", "left"), [("BACKEND", "2"), ("OTHER", "2"), ("REJECTED", "5")])
def test_its_failures_are_left_out_too(tmp_path: Path, reason: str, left: str) -> None:
    asked(tmp_path, 3)
    labels = f'model="m",reason="{reason}",version="1"'
    assert shown(ClientsCounters(tmp_path), "nv_inference_request_failure", "5", labels) == left


def test_a_counter_decreases_only_where_the_servers_own_does(tmp_path: Path) -> None:
    counters = ClientsCounters(tmp_path)
    asked(tmp_path, 1)
    found = [shown(counters, "nv_inference_count", "5")]
    asked(tmp_path, 1)  # before the server has counted it
    found += [shown(counters, "nv_inference_count", value) for value in ("5", "6", "7", "3")]
    assert found == ["4", "4", "4", "5", "1"]


def test_files_of_servers_that_ended_long_ago_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discounts, "_MOST_FILES", 2)
    for server in "abcd":
        add_discounts(tmp_path, server, ())
    assert len(list(tmp_path.iterdir())) == 3
    assert discounts.read_discounts(tmp_path, "a/b") == {}
