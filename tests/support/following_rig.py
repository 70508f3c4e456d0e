"""A fleet that follows its load, as a user walks it: real Tritons, gateway and client.

The model sleeps for a known time, so what is seen is the control, not the host.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from background import Background
from ctl_host import Host, ended
from sleeping_triton import EACH_MS, FIXED_MS, Served, lay_out, request

from controlplane.domain.device import ShareKind
from controlplane.domain.observation import Event
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.files.following import read_rates
from controlplane.files.measurements.profiles import write_profile
from controlplane.runtime.fleet.history import History

MODEL = Served(2, 1, 0)
PERCENT = 90
BRIEF_CONTROLLER = Path(__file__).parent / "brief_controller.py"
SPEC = """
schema_version: 1
gpus: [{{type: cpu, count: 2}}]
workloads:
  - {{name: W, model: {model}, slo_ms: {slo_ms:g}, rate_rps: {rate_rps:g}, shadow: {{policy: none}}}}
"""
SLO_MS = 300.0


class Load(Background):
    """Poisson requests to the gateway at a rate that can be changed.

    `answers` has the time since the epoch at which each request was sent, and its latency in ms.
    """

    def __init__(self, port: int, rate_rps: float) -> None:
        super().__init__()
        self.rate_rps = rate_rps
        self.sent = 0
        self.failed: list[str] = []
        self.answers: list[tuple[float, float]] = []
        self._owed = threading.Semaphore(0)
        self._port = port

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
                at_s = time.time()
                call.future(body, timeout=60.0).add_done_callback(lambda f, at_s=at_s: self._done(f, at_s))
            for _ in range(self.sent):
                if not self._owed.acquire(timeout=30.0):
                    self.failed.append("no answer")
                    break

    def _done(self, answer: grpc.Future, at_s: float) -> None:
        if (error := answer.exception()) is None:
            self.answers.append((at_s, 1000.0 * (time.time() - at_s)))
        else:
            self.failed.append(str(error))
        self._owed.release()


@contextlib.contextmanager
def following_host(directory: Path) -> Iterator[Host]:
    """A host with the model and its profile, whose fleet is ended afterwards."""
    with ended(Host(directory, f"load{os.getpid()}x{time.monotonic_ns() % 10**6}")) as here:
        lay_out(here.repository, MODEL)
        times = {
            (percent, batch): (FIXED_MS + EACH_MS * batch + 2.0) * 100.0 / percent
            for percent in (20.0, 40.0, 60.0, 80.0, 100.0)
            for batch in (1, 2)
        }
        profile(here, times)
        yield here


def profile(host: Host, times: dict[tuple[float, int], float]) -> None:
    """The model's profile: ms by share and batch."""
    points = (
        Measurement(percent, batch, ms, capacity_rps=1000.0 * batch / ms)
        for (percent, batch), ms in times.items()
    )
    made = Profile(
        MODEL.name, "cpu", ShareKind.CPU_QUOTA, Environment(), tuple(points), frontend_ms=2.0, max_batch=2
    )
    write_profile(host.directory / "profiles", made)


def planned(host: Host, rate_rps: float = 25.0, slo_ms: float = SLO_MS) -> dict[str, Any]:
    """A plan for one workload."""
    spec = SPEC.format(model=MODEL.name, slo_ms=slo_ms, rate_rps=rate_rps)
    (host.directory / "spec.yaml").write_text(spec)
    made = host.directory / "made.json"
    where = ["--profiles", str(host.directory / "profiles"), "--all-cores"]
    done = host.bare("plan", "spec.yaml", "--output", str(made), *where)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(made.read_text())
    return document


def of_single_requests(document: dict[str, Any]) -> dict[str, Any]:
    """The plan with a batch of one, as an operator may have chosen it, and a share for it."""
    (partition,) = document["gpus"][0]["partitions"]
    partition["percent"], partition["models"][0]["batch"] = PERCENT, 1
    return document


def applied(host: Host, document: dict[str, Any], *more: str) -> None:
    """Apply a plan that follows the load."""
    follow = ("--spec", "spec.yaml", "--follow-load", "--all-cores")
    done = host.apply(document, *follow, "--profiles", str(host.directory / "profiles"), *more)
    assert done.returncode == 0, done.stderr


Layout = list[tuple[str, float, int]]
"""GPU, share and batch of each partition."""


def plan(host: Host) -> dict[str, Any]:
    """The plan that runs."""
    document: dict[str, Any] = json.loads((host.files / "plan.json").read_text())
    return document


def layout(host: Host) -> Layout:
    return [
        (gpu["id"], partition["percent"], partition["models"][0]["batch"])
        for gpu in plan(host)["gpus"]
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
    """A change of the rate at a time since the epoch, how long the plan took to follow, and what ran then."""

    at_s: float
    rate_rps: float
    took_s: float
    layout: Layout
    events: list[str]


@dataclass(frozen=True)
class Followed:
    """What ran at first, the steps, and the requests."""

    layout: Layout
    steps: list[Step]
    load: Load


def followed(host: Host, steps: Sequence[tuple[float, float]], held_s: float = 0.0) -> Followed:
    """A fleet planned for 25 requests/s, then the rates and deadlines of `steps`; no request may fail.

    Each rate stays for `held_s` after its plan.
    """
    applied(host, of_single_requests(planned(host)), "--dwell", "20")
    first, found = layout(host), []
    with Load(host.grpc, 25.0) as load:
        await_rate(host)
        for rate, deadline_s in steps:
            since = time.time()
            load.rate_rps = rate
            event = await_event(host, "apply", "following the load", since, deadline_s)
            events = History(host.files / "history.sqlite").events(since_s=since)
            reasons = [e.reason for e in events if e.kind == "load"]
            found.append(Step(since, rate, event.at_s - since, layout(host), reasons))
            print(found[-1])
            time.sleep(held_s)
    assert load.failed == []
    return Followed(first, found, load)


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


@contextlib.contextmanager
def brief_controller(host: Host) -> Iterator[None]:
    """A controller that records and reviews every few seconds."""
    log = host.files / "controller.log"
    command = [sys.executable, str(BRIEF_CONTROLLER), "--fleet", host.fleet]
    with log.open("wb") as to, subprocess.Popen(command, env=host.environment, stdout=to, stderr=to) as run:
        try:
            yield
        finally:
            run.terminate()
