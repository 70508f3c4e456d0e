"""A request that crashes Triton, sent again and again beside its neighbours' traffic."""

import contextlib
import http.client
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gateway_rig
import guard_rig as rig
import pytest
from background import meanwhile, until
from ctl_fleet import plan
from guard_rig import Guarded, Load

pytestmark = pytest.mark.long

PERCENT, WORK_S, EVERY_S = 25.0, 0.003, 0.2
POISON = json.dumps(gateway_rig.POISON)


def partition(name: str, **endpoints: str) -> dict[str, Any]:
    made = rig.partition(name, PERCENT, rate_rps=20.0, slo_ms=1000.0)
    (workload,) = made["workloads"]
    models = sorted(set(endpoints.values()))
    return {
        **made,
        "models": [{"model": model, "batch": 4} for model in models],
        "workloads": [{**workload, "name": e, "endpoint": e, "model": m} for e, m in endpoints.items()],
    }


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Guarded]:
    with Guarded(tmp_path) as made:
        shutil.copytree(gateway_rig.MODELS / "text", made.repository / "text")
        made.apply(plan(partition("p1", near="spin", text="text"), partition("p2", far="spin")))
        made.await_guarded(3)
        yield made


@contextlib.contextmanager
def poisoning(port: int) -> Iterator[list[int]]:
    """Send it every 0.2 s; the statuses of the answers."""
    statuses: list[int] = []

    def send() -> None:
        with contextlib.suppress(http.client.HTTPException, OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            with contextlib.closing(connection):
                connection.request("POST", "/v2/models/text/infer", POISON)
                statuses.append(connection.getresponse().status)

    def go_on(stop: threading.Event) -> None:
        while not stop.wait(EVERY_S):
            threading.Thread(target=send).start()

    with meanwhile(go_on):
        yield statuses


def test_its_endpoint_is_refused_and_its_neighbours_are_served_as_planned(fleet: Guarded) -> None:
    far_servers = {s.name for s in fleet.running_servers() if s.spec.labels.partition == "p2"}
    near, far = Load(fleet.http, "near", 20.0, WORK_S, protocol="http"), Load(fleet.grpc, "far", 20.0, WORK_S)
    with near, far:
        near.await_answers(20)
        far.await_answers(20)
        began_s = time.time()
        with poisoning(fleet.http) as statuses:
            refused = fleet.await_event("refuse", since_s=began_s, says="refused")
            fleet.await_guarding("p1", lambda one: one.standby_ready, "a shadow stands by again")
            recovered_s = time.time()
            near.await_answers(20, since_s=recovered_s)
            assert 429 in statuses
        until(lambda: shares(fleet, "p1") == {PERCENT, PERCENT + 10.0}, 30.0, "the plan again")
        ended_s = time.time()
    assert refused.subject == "p1"
    assert "endpoint text" in refused.reason
    assert [r for r in near.failed() if r.started_s > recovered_s] == []
    assert far.failed() == []
    assert {s.name for s in fleet.running_servers() if s.spec.labels.partition == "p2"} == far_servers
    launched = [e.reason for e in fleet.events() if e.kind == "launch" and began_s <= e.at_s <= ended_s]
    assert launched
    assert not [reason for reason in launched if " 45 %" in reason], "no share grows"
    assert "text: refused for" in fleet.ctl("limit", "list").stdout
    fleet.ctl("limit", "remove", "text")
    assert fleet.ctl("limit", "list").stdout == ""


def shares(fleet: Guarded, partition: str) -> set[float]:
    return {s.spec.percent for s in fleet.running_servers() if s.spec.labels.partition == partition}
