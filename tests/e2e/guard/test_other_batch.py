"""A server that loses its quota while nothing stands by gets another batch at once, and later the plan's."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from background import until
from guard_rig import Guarded, Load, needs_quota
from lone_server import BATCH, LEARNED, PERCENT, RATE_RPS, document, load, lone_server

pytestmark = pytest.mark.long

CUT_PERCENT, SLO_MS = 25.0, 1000.0


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Guarded]:
    with lone_server(tmp_path) as made:
        yield made


def batch_of(fleet: Guarded) -> tuple[int, int]:
    """The batch in force and the plan's, as `ctl status` shows them."""
    (row,) = fleet.document("status")["servers"]
    (batch,) = row["batches"]
    return batch["batch"], batch["planned"]


def test_a_server_without_a_shadow_that_is_slow_gets_a_larger_batch_and_the_plans_back(
    fleet: Guarded,
) -> None:
    fleet.apply(document(SLO_MS))
    needs_quota(fleet)
    before = {server.id for server in fleet.launched()}
    assert batch_of(fleet) == (BATCH, BATCH)
    with load(fleet) as clients:
        clients.await_answers(LEARNED)
        cut_s = time.time()
        fleet.cut_quota(PERCENT, CUT_PERCENT)
        changed = fleet.await_event("batch", since_s=cut_s)
        in_force, planned = batch_of(fleet)
        assert in_force > planned == BATCH
        assert changed.at_s - cut_s < 20.0
        until(lambda: is_fast(clients), 60.0, "the larger batch holds the rate")
        whole_s = time.time()
        fleet.cut_quota(PERCENT, PERCENT)
        fleet.await_event("batch", since_s=whole_s, deadline_s=150.0)
        assert batch_of(fleet) == (BATCH, BATCH)
    assert clients.failed() == []
    assert {server.id for server in fleet.launched()} == before, "no server was started"


def is_fast(clients: Load) -> bool:
    """Whether the requests of the last seconds came within the SLO."""
    latest = [r for r in clients.requests[-int(3 * RATE_RPS) :] if r.ended_s > time.time() - 5.0]
    return len(latest) > RATE_RPS and all(r.latency_ms < SLO_MS for r in latest)
