"""A server that loses its quota while nothing stands by gets another batch at once, and later the plan's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import guard_rig as rig
import pytest
from background import until
from ctl_fleet import plan
from guard_rig import Guarded, Load

pytestmark = pytest.mark.long

PERCENT, CUT_PERCENT = 60.0, 25.0
BATCH, RATE_RPS, SLO_MS = 2, 40.0, 1000.0
MODEL = """\
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(r, "X") for r in requests]
        end = time.thread_time() + 0.012 + 0.0005 * len(requests)
        while time.thread_time() < end:
            pass
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", t.as_numpy())]) for t in tensors]
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Guarded]:
    with Guarded(tmp_path) as made:
        (made.repository / "spin" / "1" / "model.py").write_text(MODEL)
        yield made


def document() -> dict[str, Any]:
    made = rig.partition("w", PERCENT, shadow=False, batch=BATCH, rate_rps=RATE_RPS, slo_ms=SLO_MS)
    each_ms = [100.0 / PERCENT * (12.0 + 0.5 * size) for size in range(1, BATCH + 1)]
    made["workloads"][0]["predicted"] = {"batch_ms": each_ms, "p99_ms": 200.0, "utilisation": 0.5}
    return plan(made)


def batch_of(fleet: Guarded) -> tuple[int, int]:
    """The batch in force and the plan's, as `ctl status` shows them."""
    (row,) = fleet.document("status")["servers"]
    (batch,) = row["batches"]
    return batch["batch"], batch["planned"]


def test_a_server_without_a_shadow_that_is_slow_gets_a_larger_batch_and_the_plans_back(
    fleet: Guarded,
) -> None:
    fleet.apply(document())
    if fleet.launcher().enforcement() is None:
        pytest.skip("CAPABILITY MISSING: no cgroup quota on this host to cut behind the guard's back")
    before = {server.id for server in fleet.launched()}
    assert batch_of(fleet) == (BATCH, BATCH)
    with Load(fleet.grpc, "w", RATE_RPS, 0.0) as load:
        load.await_answers(400)
        cut_s = time.time()
        fleet.cut_quota(PERCENT, CUT_PERCENT)
        changed = fleet.await_event("batch", since_s=cut_s)
        in_force, planned = batch_of(fleet)
        assert in_force > planned == BATCH
        assert changed.at_s - cut_s < 20.0
        until(lambda: is_fast(load), 60.0, "the larger batch holds the rate")
        whole_s = time.time()
        fleet.cut_quota(PERCENT, PERCENT)
        fleet.await_event("batch", since_s=whole_s, deadline_s=150.0)
        assert batch_of(fleet) == (BATCH, BATCH)
    assert load.failed() == []
    assert {server.id for server in fleet.launched()} == before, "no server was started"


def is_fast(load: Load) -> bool:
    """Whether the requests of the last seconds came within the SLO."""
    latest = [r for r in load.requests[-int(3 * RATE_RPS) :] if r.ended_s > time.time() - 5.0]
    return len(latest) > RATE_RPS and all(r.latency_ms < SLO_MS for r in latest)
