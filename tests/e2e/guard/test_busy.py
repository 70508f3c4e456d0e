"""Servers that are busy, pause or refuse by policy are left alone: a plain Triton would answer too."""

import contextlib
import http.client
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import guard_rig as rig
import httpx
import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from background import stopped, until
from ctl_fleet import plan
from guard_rig import Guarded, Load

from controlplane.gateway.haproxy import HaproxyGateway
from controlplane.runtime.fleet.execute import backend

pytestmark = pytest.mark.long

MODELS = Path(__file__).parents[2] / "support" / "busy_models"
SLO_MS = 400.0
LONGEST_MS = 4000.0
"""Of the model with a full queue."""


def partition(model: str, longest_ms: float | None = None) -> dict[str, Any]:
    made = rig.partition(model, 20, rate_rps=20.0, slo_ms=SLO_MS)
    made["models"][0].update(model=model, batch=1 if model in ("narrow", "tokens") else 4)
    made["workloads"][0]["model"] = model
    if longest_ms is not None:
        made["workloads"][0]["longest_ms"] = longest_ms
    return made


NARROW, TOKENS, TOTAL = partition("narrow", LONGEST_MS), partition("tokens"), partition("total")
NARROW["workloads"][0]["drop_after_ms"] = 700.0
BRIEF = """
import functools
from controlplane.cli import main
from controlplane.runtime.fleet import execute, fleet
limits = execute.Limits(drain_s=1.0)
fleet.Fleet.__init__ = functools.partialmethod(fleet.Fleet.__init__, limits=limits)
main.main()
"""
"""`ctl` that waits for a drain for a second."""

ON_PROCESSES = pytest.mark.parametrize("fleet", ["process"], indirect=True, scope="module")
"""Where the verdict rests on the gateway's log, which is the same for every launcher."""
ON_BOTH = pytest.mark.parametrize(
    ("fleet", "protocol"),
    [("process", "http"), pytest.param("docker", "grpc", marks=pytest.mark.docker)],
    indirect=["fleet"],
    scope="module",
)
"""Where it rests on what the launcher says of the server too."""


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with rig.guarded(tmp_path_factory.mktemp("b"), request.param, MODELS) as made:
        made.apply(plan(partition("wait"), NARROW, TOKENS, TOTAL))
        made.await_guarded(4)
        yield made


@pytest.fixture
def undisturbed(fleet: Guarded) -> Iterator[Guarded]:
    """The fleet, of which no server is left or ended during the test."""
    before, began_s = {server.name for server in fleet.running_servers()}, time.time()
    yield fleet
    assert [e for e in fleet.events() if e.at_s >= began_s and e.kind in ("redirect", "launch")] == []
    assert {server.name for server in fleet.running_servers()} == before


def infer(fleet: Guarded, protocol: str, model: str, value: float, timeout_s: float = 60.0) -> float:
    """Run one inference; return what it took. Its client leaves after the timeout."""
    return infer_at(f"127.0.0.1:{getattr(fleet, protocol)}", protocol, model, value, timeout_s)


def infer_at(target: str, protocol: str, model: str, value: float, timeout_s: float = 60.0) -> float:
    began = time.monotonic()
    rig.infer(target, model, value, protocol=protocol, timeout_s=timeout_s)
    return time.monotonic() - began


@ON_BOTH
def test_a_long_request_after_short_ones_is_answered(undisturbed: Guarded, protocol: str) -> None:
    for _ in range(30):
        infer(undisturbed, protocol, "wait", 0.01)
    # Canaries are due behind it, and it takes twenty SLOs.
    assert infer(undisturbed, protocol, "wait", 9.0) >= 9.0


@ON_PROCESSES
def test_a_long_request_whose_client_leaves_ends_no_server(undisturbed: Guarded) -> None:
    (server,) = [s for s in undisturbed.launched() if s.name == undisturbed.active("wait")]
    for protocol in ("grpc", "http"):
        with pytest.raises(Exception, match=r"[Dd]eadline|timed out"):
            infer(undisturbed, protocol, "wait", 9.0, timeout_s=1.0)
    # Past the gateway, which must take the server for idle: two canaries are late meanwhile.
    assert infer_at(f"{server.host}:{server.grpc_port}", "grpc", "wait", 0.01) >= 12.0


@ON_PROCESSES
def test_a_long_request_among_others_is_answered_and_costs_none_of_them(fleet: Guarded) -> None:
    with Load(fleet.grpc, "wait", 15.0, 0.01) as load, ThreadPoolExecutor(1) as pool:
        load.await_answers(20)
        long = pool.submit(infer, fleet, "http", "wait", 8.0)
        assert long.result(timeout=60.0) >= 8.0
        load.await_answers(20, since_s=time.time())
    assert load.failed() == []
    fleet.await_guarded(4)


@ON_PROCESSES
def test_malformed_requests_beside_a_long_one_end_no_server(undisturbed: Guarded) -> None:
    body, began_s = b'{"inputs":[{"name":"X","shape":[1,1],"datatype":"FP32","data":["a"]}]}', time.time()

    @contextlib.contextmanager
    def begun() -> Iterator[http.client.HTTPConnection]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", undisturbed.http, 60.0)) as opened:
            opened.putrequest("POST", "/v2/models/wait/infer")
            opened.putheader("Content-Length", str(len(body)))
            opened.endheaders()
            yield opened

    def ended(opened: http.client.HTTPConnection) -> int:
        opened.send(body)
        return opened.getresponse().status

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        slow = [stack.enter_context(begun()) for _ in range(5)]
        long = pool.submit(infer, undisturbed, "http", "wait", 6.0)
        gateway = HaproxyGateway(undisturbed.files / "gateway")
        (active,) = [s for s in undisturbed.launched() if s.name == undisturbed.active("wait")]
        until(lambda: gateway.in_flight(backend(active)).requests == 1)
        # Triton refuses them past the model, and a canary waits behind the long request.
        assert [ended(stack.enter_context(begun())) for _ in range(5)] == [500] * 5
        undisturbed.await_event("notice", since_s=began_s, says="failed requests in a row")
        assert [ended(one) for one in slow] == [500] * 5
        assert long.result(timeout=60.0) >= 6.0


def events(fleet: Guarded, gap_s: float, until: Path, begun: threading.Event) -> int:
    """Two tokens over HTTP, the last once the file exists; how many came."""
    url, count = f"http://127.0.0.1:{fleet.http}/v2/models/tokens/generate_stream", 0
    with httpx.stream("POST", url, json={"N": 2, "GAP": gap_s, "UNTIL": str(until)}, timeout=90.0) as answer:
        for line in answer.iter_lines():
            count += line.startswith("data:")
            begun.set()
    return count


def streamed(fleet: Guarded, gap_s: float, until: Path, begun: threading.Event) -> int:
    """The same over gRPC."""
    answers: queue.Queue[Any] = queue.Queue()
    with over_grpc.InferenceServerClient(f"127.0.0.1:{fleet.grpc}") as client:
        client.start_stream(callback=lambda result, error: answers.put(error or result))
        n, gap = over_grpc.InferInput("N", [1], "INT32"), over_grpc.InferInput("GAP", [1], "FP32")
        last = over_grpc.InferInput("UNTIL", [1], "BYTES")
        n.set_data_from_numpy(np.array([2], np.int32))
        gap.set_data_from_numpy(np.array([gap_s], np.float32))
        last.set_data_from_numpy(np.array([str(until).encode()], np.object_))
        client.async_stream_infer("tokens", [n, gap, last])
        found = []
        for _ in range(2):
            found.append(answers.get(timeout=90.0))
            begun.set()
        client.stop_stream()
    return sum(isinstance(one, over_grpc.InferResult) for one in found)


@ON_PROCESSES
def test_tokens_that_are_far_apart_all_arrive(undisturbed: Guarded) -> None:
    with ThreadPoolExecutor(4) as pool:
        both = (events, streamed)
        at_once = Path("/")
        counts = [pool.submit(one, undisturbed, 2.5, at_once, threading.Event()) for one in (*both, *both)]
        assert [one.result(timeout=120.0) for one in counts] == [2] * 4


def test_a_stream_that_outlasts_an_apply_is_whole_and_its_server_ends_after_it(tmp_path: Path) -> None:
    larger = {**TOKENS, "percent": 25, "shadow": {**TOKENS["shadow"], "percent": 35}}
    with Guarded(tmp_path, MODELS) as fleet, ThreadPoolExecutor(2) as pool:
        fleet.apply(plan(TOKENS))
        fleet.await_guarded()
        before, begun, applied = fleet.active("tokens"), threading.Event(), tmp_path / "applied"
        counts = [pool.submit(one, fleet, 0.1, applied, begun) for one in (events, streamed)]
        assert begun.wait(60.0)
        command = fleet.command(*fleet.apply_command(plan(larger)), program=(sys.executable, "-c", BRIEF))
        told = subprocess.run(command, cwd=tmp_path, env=fleet.environment, capture_output=True, timeout=90)
        assert told.returncode == 0, told.stderr
        assert fleet.active("tokens") != before
        assert before in {server.name for server in fleet.running_servers()}
        assert not any(one.done() for one in counts)
        applied.touch()
        assert [one.result(timeout=60.0) for one in counts] == [2, 2]
        until(lambda: before not in {server.name for server in fleet.running_servers()})
        fleet.await_guarded()


@ON_PROCESSES
def test_sequences_that_pause_keep_their_state(undisturbed: Guarded) -> None:
    with over_http.InferenceServerClient(f"127.0.0.1:{undisturbed.http}") as client:

        def add(sequence: int, *, start: bool = False, end: bool = False) -> int:
            x = over_http.InferInput("X", [1, 1], "INT32")
            x.set_data_from_numpy(np.array([[1]], dtype=np.int32))
            given = {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
            return int(client.infer("total", [x], **given).as_numpy("SUM")[0, 0])

        for turn in range(30):
            sums = [add(sequence, start=turn == 0) for sequence in (1, 2, 3)]
        assert sums == [30, 30, 30]
        time.sleep(
            4.0
        )  # longer than any silence that is a hang, and than the wait for an idle server's canary
        assert [add(sequence, end=True) for sequence in (1, 2, 3)] == [31, 31, 31]


@ON_PROCESSES
def test_what_a_queue_refuses_is_overload_and_no_fault(undisturbed: Guarded) -> None:
    began_s, until = time.time(), time.monotonic() + 8.0
    url = f"http://127.0.0.1:{undisturbed.http}/v2/models/narrow/infer"
    body = {"inputs": [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [0.5]}]}

    def flood() -> Counter[tuple[int, str]]:
        got: Counter[tuple[int, str]] = Counter()
        with httpx.Client(timeout=30.0) as client:
            while time.monotonic() < until:
                answer = client.post(url, json=body)
                got[answer.status_code, answer.json().get("error", "")] += 1
        return got

    with ThreadPoolExecutor(6) as pool:
        answers = sum(
            (one.result() for one in [pool.submit(flood) for _ in range(6)]), Counter[tuple[int, str]]()
        )
    assert {status for status, _ in answers} == {200, 503}
    full, late = (
        sum(count for (_, error), count in answers.items() if words in error)
        for words in ("Exceeds maximum queue size", "Request timeout expired")
    )
    assert full > 50
    assert late >= 3, "of two that wait for half a second each the second waits longer than it may"
    undisturbed.await_event("notice", since_s=began_s, says="queue policy")
    told_of = undisturbed.document("status")["workloads"]
    (row,) = (one for one in told_of if one["workload"] == "narrow")
    assert row["errors"] == 0
    assert row["refused"] > 50


@ON_PROCESSES
def test_a_gateway_that_stood_still_leaves_no_server(undisturbed: Guarded) -> None:
    (haproxy,) = undisturbed.gateway_processes("haproxy")
    with Load(undisturbed.grpc, "wait", 15.0, 0.01) as load:
        load.await_answers(40)
        with stopped(haproxy.pid):
            undisturbed.await_event("gateway", since_s=0.0, says="does not run")
        load.await_answers(20, since_s=time.time())
    assert load.failed() == []


@ON_PROCESSES
def test_a_model_that_hangs_behind_a_full_queue_is_left(fleet: Guarded) -> None:
    url = f"http://127.0.0.1:{fleet.http}/v2/models/narrow/infer"
    began_s, until = time.time(), time.monotonic() + 60.0
    left = threading.Event()

    def asked(value: float, timeout_s: float) -> int:
        body = {"inputs": [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [value]}]}
        try:
            return httpx.post(url, json=body, timeout=timeout_s).status_code
        except httpx.TransportError:
            return 0

    def insist() -> Counter[int]:
        got: Counter[int] = Counter()
        while not left.is_set() and time.monotonic() < until:
            got[asked(0.01, 30.0)] += 1
            time.sleep(0.02)
        return got

    assert asked(600.0, 1.0) == 0, "its client gives up, and the model goes on"
    with ThreadPoolExecutor(6) as pool:
        clients = [pool.submit(insist) for _ in range(6)]
        try:
            # By its canaries, if there were moments in which no request was open.
            fleet.await_event("redirect", since_s=began_s, says=": hang")
        finally:
            left.set()
        told = sum((one.result() for one in clients), Counter[int]())
    assert told[503] > 10
    assert asked(0.01, 30.0) == 200
    fleet.await_guarded(4)


@pytest.fixture
def brief(fleet: Guarded) -> Iterator[Guarded]:
    """The fleet, of whose model no request takes as long as in other tests."""
    fleet.apply(plan(partition("wait", LONGEST_MS), NARROW, TOKENS, TOTAL))
    fleet.await_guarded(4)
    yield fleet
    fleet.apply(plan(partition("wait"), NARROW, TOKENS, TOTAL))
    fleet.await_guarded(4)


@ON_BOTH
def test_a_hang_that_its_client_has_left_takes_one_server(brief: Guarded, protocol: str) -> None:
    began_s = time.time()
    with pytest.raises(Exception, match=r"[Dd]eadline|timed out"):
        infer(brief, protocol, "wait", 600.0, timeout_s=1.0)
    with (
        Load(brief.grpc, "wait", 2.0, 0.01) as grpc,
        Load(brief.http, "wait", 2.0, 0.01, protocol="http") as http,
    ):
        brief.await_event("redirect", since_s=began_s)
        answered_s = time.time()
        grpc.await_answers(20, since_s=answered_s)
        http.await_answers(20, since_s=answered_s)
    assert grpc.failed() + http.failed() == []
    moved = [e.reason for e in brief.events() if e.kind == "redirect" and e.at_s >= began_s]
    assert [reason.endswith(": hang") for reason in moved].count(True) == 1, moved
    brief.await_guarded(4)
