"""A fleet that follows its load, as a user walks it: real Tritons, gateway and client, no failed request.

The model sleeps for a known time, so what is tested is the control, not the host.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from ctl_host import Host, ended
from sleeping_triton import EACH_MS, FIXED_MS, Served, lay_out, request

from controlplane.domain.device import ShareKind
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.files.following.rates import read_rates
from controlplane.files.measurements.profiles import write_profile
from controlplane.runtime.fleet.history import Event, History

pytestmark = pytest.mark.e2e

MODEL = Served(2, 1, 0)
SPEC = f"""
schema_version: 1
gpus: [{{type: cpu, count: 2}}]
workloads:
  - {{name: W, model: {MODEL.name}, slo_ms: 300, rate_rps: 25, shadow: {{policy: none}}}}
"""
BATCHES_S, PLAN_S, BACK_S = 60.0, 90.0, 120.0
"""Deadlines of a shared host; what the control needs is in docs/results/changing-load.md."""


class Load:
    """Poisson requests to the gateway at a rate that can be changed."""

    def __init__(self, port: int, rate_rps: float) -> None:
        self.rate_rps = rate_rps
        self.sent = 0
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._owed = threading.Semaphore(0)
        self._port = port
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        random, body = np.random.default_rng(1), request(MODEL)
        with grpc.insecure_channel(f"127.0.0.1:{self._port}") as channel:
            call = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=None,
                response_deserializer=None,
            )
            due = time.monotonic()
            while not self._stop.is_set():
                due += random.exponential(1.0 / self.rate_rps)
                if self._stop.wait(max(0.0, due - time.monotonic())):
                    break
                self.sent += 1
                call.future(body, timeout=60.0).add_done_callback(self._done)
            for _ in range(self.sent):
                if not self._owed.acquire(timeout=30.0):
                    self.failed.append("no answer")
                    break

    def _done(self, answer: grpc.Future) -> None:
        if (error := answer.exception()) is not None:
            self.failed.append(str(error))
        self._owed.release()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with ended(Host(tmp_path, f"load{os.getpid()}x{time.monotonic_ns() % 10**6}")) as here:
        lay_out(here.repository, MODEL)
        points = [
            Measurement(percent, batch, ms, capacity_rps=1000.0 * batch / ms)
            for percent in (20.0, 40.0, 60.0, 80.0, 100.0)
            for batch in (1, 2)
            for ms in ((FIXED_MS + EACH_MS * batch + 2.0) * 100.0 / percent,)
        ]
        profile = Profile(
            MODEL.name, "cpu", ShareKind.CPU_QUOTA, Environment(), tuple(points), frontend_ms=2.0, max_batch=2
        )
        write_profile(tmp_path / "profiles", profile)
        yield here


def planned(host: Host) -> dict[str, Any]:
    """A plan of the spec, with a batch of one as an operator may have chosen it, and the share for it."""
    (host.directory / "spec.yaml").write_text(SPEC)
    made = host.directory / "made.json"
    where = ["--profiles", str(host.directory / "profiles"), "--all-cores"]
    done = host.bare("plan", "spec.yaml", "--output", str(made), *where)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(made.read_text())
    (partition,) = document["gpus"][0]["partitions"]
    partition["percent"], partition["models"][0]["batch"] = 90, 1
    return document


def layout(host: Host) -> list[tuple[str, float, int]]:
    """GPU, share and batch of each partition of the plan that runs."""
    plan = json.loads((host.files / "plan.json").read_text())
    return [
        (gpu["id"], partition["percent"], partition["models"][0]["batch"])
        for gpu in plan["gpus"]
        for partition in gpu["partitions"]
    ]


def await_event(host: Host, kind: str, says: str, since_s: float, deadline_s: float) -> Event:
    """The first event of this kind that says this."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        for event in History(host.files / "history.sqlite").events(since_s=since_s):
            if event.kind == kind and says in event.reason:
                return event
        time.sleep(0.2)
    log = (host.files / "controller.log").read_text()[-4000:]
    raise AssertionError(f"no {kind} {says!r} in {deadline_s:g} s\n{log}")


@dataclass(frozen=True)
class Step:
    """A change of the rate, how long the plan took to follow, and the plan and events after it."""

    rate_rps: float
    took_s: float
    layout: list[tuple[str, float, int]]
    events: list[str]


def followed(host: Host, *steps: tuple[float, float]) -> list[Step]:
    """A fleet planned for 25 requests/s, then the rates and deadlines of `steps`; no request may fail."""
    follow = ("--spec", "spec.yaml", "--follow-load", "--dwell", "20")
    first = host.apply(planned(host), *follow, "--all-cores", "--profiles", str(host.directory / "profiles"))
    assert first.returncode == 0, first.stderr
    found = []
    with Load(host.grpc, 25.0) as load:
        await_rate(host)
        for rate, deadline_s in steps:
            since = time.time()
            load.rate_rps = rate
            event = await_event(host, "apply", "following the load", since, deadline_s)
            events = History(host.files / "history.sqlite").events(since_s=since)
            reasons = [e.reason for e in events if e.kind == "load"]
            found.append(Step(rate, event.at_s - since, layout(host), reasons))
            print(found[-1])
    assert load.failed == []
    return found


def await_rate(host: Host) -> None:
    """Wait until the controller knows the rate: it settles meanwhile."""
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        seen = read_rates(host.files / "rates.json")
        if seen is not None and (seen.rates[0].lower_rps or 0.0) > 15.0:
            assert seen.following == "yes"
            return
        time.sleep(0.2)
    raise AssertionError((host.files / "controller.log").read_text()[-4000:])


def test_a_doubled_rate_is_followed_and_no_request_fails(host: Host) -> None:
    (doubled,) = followed(host, (50.0, BATCHES_S))
    # Mostly another batch alone; a smeared step may pass for the begin of a ramp, which takes a core more.
    batches, cores = ({one[at] for one in doubled.layout} for at in (2, 0))
    assert batches == {2} or len(cores) == 2, "single requests of one core hold 25/s, not 50"
    assert any("25/s planned: " in reason for reason in doubled.events)


@pytest.mark.soak
def test_a_doubled_rate_changes_batches_a_tripled_one_servers_and_back(host: Host) -> None:
    steps = followed(host, (50.0, BATCHES_S), (85.0, PLAN_S), (20.0, BACK_S))
    assert steps[0].layout == [("cpu-0", 90, 2)], "the share stays"
    assert [len({gpu for gpu, _, _ in step.layout}) for step in steps] == [1, 2, 1]
    assert await_event(host, "free", "", 0.0, 20.0).subject == "cpu-1"
