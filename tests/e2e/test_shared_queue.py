"""Endpoints of one partition, in one queue or of models that take turns, move together."""

import contextlib
import json
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import guard_rig as rig
import httpx
import pytest
from background import until
from ctl_fleet import plan
from guard_rig import Guarded, Load
from perf_client import perf_analyzer

from controlplane.triton.client import TritonClient

RATE_RPS = 25.0
WORK_S = 0.003


def together(name: str, *endpoints: str, percent: float = 40.0, shadow: bool = True) -> dict[str, Any]:
    """A partition whose workloads share one queue."""
    made = rig.partition(name, percent, rate_rps=RATE_RPS, slo_ms=2000.0)
    made["shadow"] = made["shadow"] if shadow else None
    (pattern,) = made["workloads"]
    made["workloads"] = [{**pattern, "name": e, "endpoint": e} for e in endpoints]
    return made


def in_turns(name: str, *endpoints: str, percent: float = 20.0) -> dict[str, Any]:
    """A partition with a model for each endpoint; the models after the first are copies of it."""
    made = rig.partition(name, percent, rate_rps=RATE_RPS, slo_ms=2000.0)
    (pattern,), models = made["workloads"], ["spin", *(f"spin-{e}" for e in endpoints[1:])]
    made["models"] = [{"model": model, "batch": 4} for model in models]
    made["workloads"] = [
        {**pattern, "name": e, "endpoint": e, "model": model}
        for e, model in zip(endpoints, models, strict=True)
    ]
    return made


PLAN = plan(together("P", "b", "a"), in_turns("Q", "c", "d"))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(tmp_path_factory.mktemp("shared")) as made:
        shutil.copytree(rig.MODELS / "spin", made.repository / "spin-d")
        yield made


@pytest.fixture
def fleet(host: Guarded) -> Guarded:
    """`a` and `b` in one queue, `c` and `d` in turns, with shadows ready, whatever the test before left."""

    def covered() -> bool:
        rows = json.loads((host.files / "gateway" / "slots.json").read_text())["slots"]
        return {r["endpoint"] for r in rows if r["backup"] and not r["draining"]} == set("abcd")

    applied = host.directory / "plan.json"
    if not applied.exists() or json.loads(applied.read_text()) != PLAN:
        host.apply(PLAN)
    until(covered, 60.0, "a shadow stands by for each")
    return host


@contextlib.contextmanager
def loads(fleet: Guarded, *endpoints: str, rate_rps: float = RATE_RPS) -> Iterator[list[Load]]:
    """Unmodified clients on each endpoint, HTTP and gRPC in turn."""
    ports = {"grpc": fleet.grpc, "http": fleet.http}
    with contextlib.ExitStack() as stack:
        made = []
        for n, endpoint in enumerate(endpoints):
            protocol = ("grpc", "http")[n % 2]
            load = Load(ports[protocol], endpoint, rate_rps, WORK_S, seed=n, protocol=protocol)
            made.append(stack.enter_context(load))
        yield made


def await_answers(clients: list[Load], since_s: float = 0.0) -> None:
    """Until each of them had a second's worth of answers."""
    for one in clients:
        one.await_answers(int(RATE_RPS), since_s)


def drive(fleet: Guarded, endpoint: str, protocol: str) -> None:
    """NVIDIA's own client, for three windows with requests: it reads configuration and statistics besides."""
    port = {"grpc": fleet.grpc, "http": fleet.http}[protocol]
    told = perf_analyzer(
        *("-m", endpoint, "-u", f"127.0.0.1:{port}", "-i", protocol, "--input-data", "zero"),
        *("--request-rate-range", "20", "-p", "800", "-s", "999", "-r", "20"),
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "Failed" not in told.stdout


def inferences(fleet: Guarded, endpoint: str) -> int:
    return int(of_model(fleet, endpoint, "stats")["model_stats"][0]["inference_count"])


def of_model(fleet: Guarded, endpoint: str, what: str) -> dict[str, Any]:
    answer = httpx.get(f"http://127.0.0.1:{fleet.http}/v2/models/{endpoint}/{what}", trust_env=False)
    return dict(answer.raise_for_status().json())


def test_clients_read_none_of_the_fleets_own_inferences(fleet: Guarded) -> None:
    def tested_again() -> bool:
        with contextlib.ExitStack() as stack:
            servers = fleet.running_servers()
            served = [
                (stack.enter_context(TritonClient(s)), e)
                for s in servers
                for e in ("ab" if ".P." in s.name else "cd")
            ]
            return all(client.statistics(endpoint).inferences > 2 for client, endpoint in served)

    until(tested_again, 60.0, "each server has got canaries after its test")
    assert [inferences(fleet, endpoint) for endpoint in "abcd"] == [0] * 4
    page = httpx.get(f"http://127.0.0.1:{fleet.metrics}/metrics", trust_env=False).text
    counts = re.findall(r"^nv_inference_(?:count|request_success)\{.* (.+)$", page, re.MULTILINE)
    assert set(counts) == {"0"}


def test_the_gateway_knows_who_executes_for_whom(fleet: Guarded) -> None:
    # In a pool it counts what one model's endpoints have in flight together.
    rows = json.loads((fleet.files / "gateway" / "slots.json").read_text())["slots"]
    active = {r["endpoint"]: r["executes"] for r in rows if not r["draining"]}
    assert active == {"a": "a", "b": "a", "c": "c", "d": "d"}


def test_two_endpoints_in_one_queue_move_together_and_lose_nothing(fleet: Guarded) -> None:
    before = fleet.active("a")
    assert before == fleet.active("b")
    with loads(fleet, "a", "b") as clients:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda pair: drive(fleet, *pair), [("a", "grpc"), ("b", "grpc"), ("b", "http")]))
        # The alias first: while the second is asked, both go on.
        counted = {e: inferences(fleet, e) for e in ("b", "a")}
        assert counted["a"] > counted["b"] > 0, "the model counts what its alias was asked too"
        told = fleet.ctl("redirect", "b")
        assert "a: in one partition with b, so redirected too" in told.stderr
        assert fleet.active("a") == fleet.active("b") != before
        rows = {w["workload"]: w for w in fleet.document("status")["workloads"]}
        for one in ("a", "b"):
            assert (rows[one]["partitions"], rows[one]["errors"]) == (["P"], 0)
            assert rows[one]["rate_rps"] > 0 < rows[one]["p99_ms"]
        again = {e: inferences(fleet, e) for e in ("a", "b")}
        assert all(again[e] >= counted[e] for e in again), "counters never run backwards"
        await_answers(clients, since_s=time.time())
    assert [load.failed() for load in clients] == [[], []]


def test_two_models_that_take_turns_move_together_and_lose_nothing(fleet: Guarded) -> None:
    before = fleet.active("c")
    assert before == fleet.active("d")
    with loads(fleet, "c", "d") as clients:
        await_answers(clients)
        fleet.ctl("redirect", "d")
        assert fleet.active("c") == fleet.active("d") != before
        await_answers(clients, since_s=time.time())
    assert [load.failed() for load in clients] == [[], []]


def test_a_killed_server_takes_both_endpoints_to_the_shadow(fleet: Guarded) -> None:
    with loads(fleet, "a", "b") as clients:
        await_answers(clients)
        before = fleet.active("a")
        hit_s, dead_s = rig.kill(fleet.tree(before))
        fleet.await_event("redirect", since_s=hit_s)
        assert fleet.active("a") == fleet.active("b") != before, "both are moved"
        await_answers(clients, since_s=time.time())
    # What was in the dead server's hands may be lost; nothing after.
    assert [load.unexplained(hit_s, dead_s) for load in clients] == [[], []]


@pytest.mark.soak
def test_an_endpoint_joins_a_queue_and_another_leaves_it_under_load(fleet: Guarded) -> None:
    with loads(fleet, "a", "b", "c") as clients:
        await_answers(clients)
        swapped = (together("P", "a", "c", shadow=False), together("Q", "b", percent=20, shadow=False))
        told = fleet.apply(plan(*swapped), "--no-controller")
        assert fleet.active("a") == fleet.active("c") != fleet.active("b"), told.stderr
        await_answers(clients, since_s=time.time())
    assert [load.failed() for load in clients] == [[], [], []]
    assert ".P." in fleet.active("a")
    assert of_model(fleet, "c", "config")["ensemble_scheduling"]["step"][0]["model_name"] == "a"
    assert "dynamic_batching" in of_model(fleet, "b", "config"), "by itself it is the model"


@pytest.mark.soak
def test_a_pool_serves_a_shared_queue_and_survives_one_of_its_servers(fleet: Guarded) -> None:
    half = [together(f"W-{n}", "a", "b", percent=30, shadow=False) for n in (1, 2)]
    fleet.apply(plan(*half))
    (first, second) = sorted(s.name for s in fleet.launched())
    with loads(fleet, "a", "b", "a", "b") as clients:
        await_answers(clients)
        counted = {e: inferences(fleet, e) for e in ("a", "b")}
        hit_s, dead_s = rig.kill(fleet.tree(first))
        fleet.await_event("redirect", since_s=hit_s, deadline_s=60.0)
        await_answers(clients, since_s=time.time())
        again = {e: inferences(fleet, e) for e in ("a", "b")}
    assert [load.unexplained(hit_s, dead_s) for load in clients] == [[]] * 4
    assert all(load.between(dead_s + 0.5, time.time()) for load in clients)
    assert all(again[e] >= counted[e] > 0 for e in again), "what the dead server counted is kept"
    assert second in {s.name for s in fleet.launched()}


def test_a_plan_that_relies_on_an_order_is_applied_under_traffic_and_lets_requests_wait(
    fleet: Guarded,
) -> None:
    """`d` first. Gates come and go with the plan, and what waits at one that goes is answered."""
    ranked = in_turns("Q", "c", "d", percent=40.0)
    for model, rank in zip(ranked["models"], (1, 0), strict=True):
        model |= {"batch": 1, "rank": rank}
    for one in ranked["workloads"]:
        one["predicted"] = {"execution_ms": 3.0}

    def gates() -> dict[str, int]:
        document = json.loads((fleet.files / "gateway" / "order.json").read_text())
        return {one["endpoint"]: one["after_ms"] for one in document["endpoints"]}

    def gated() -> bool:
        """Whether HAProxy runs with gates."""
        return "backend q_0" in (fleet.files / "gateway" / "haproxy.cfg").read_text()

    with loads(fleet, "c", "d", rate_rps=10.0) as clients:
        await_answers(clients)
        fleet.apply(plan(together("P", "b", "a"), ranked))
        assert gates() == {"c": 60_000, "d": 0}
        assert gated()
        await_answers(clients, since_s=time.time())
        fleet.apply(PLAN)
        assert gates() == {}
        assert not gated()
        await_answers(clients, since_s=time.time())
    assert [load.failed() for load in clients] == [[], []]
