"""A fleet that follows its load, as a user walks it: real Tritons, gateway and client.

The model sleeps for a known time, so what is seen is the control, not the host.
"""

import contextlib
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from background import until
from ctl_fleet import Ctl
from guard_rig import Load
from sleeping_triton import EACH_MS, FIXED_MS, Served, lay_out

from controlplane.domain.device import ShareKind
from controlplane.domain.observation import Event
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.files.following import read_rates
from controlplane.files.measurements.profiles import write_profile

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


@contextlib.contextmanager
def following_host(directory: Path) -> Iterator[Ctl]:
    """A host with the model and its profile, whose fleet is ended afterwards."""
    with Ctl(directory, "load") as here:
        lay_out_profiled(here)
        yield here


def lay_out_profiled(host: Ctl) -> None:
    """Write the model and its profile."""
    lay_out(host.repository, MODEL)
    times = {
        (percent, batch): (FIXED_MS + EACH_MS * batch + 2.0) * 100.0 / percent
        for percent in (20.0, 40.0, 60.0, 80.0, 100.0)
        for batch in (1, 2)
    }
    profile(host, times)


def loaded(host: Ctl, rate_rps: float) -> Load:
    """Poisson requests at a rate that can be changed."""
    return Load(host.grpc, MODEL.name, rate_rps, work_s=0.0)


def profile(host: Ctl, times: dict[tuple[float, int], float], model: Served = MODEL) -> None:
    """The model's profile: ms by share and batch."""
    points = (
        Measurement(percent, batch, ms, capacity_rps=1000.0 * batch / ms)
        for (percent, batch), ms in times.items()
    )
    made = Profile(
        model.name,
        "cpu",
        ShareKind.CPU_QUOTA,
        Environment(),
        tuple(points),
        frontend_ms=2.0,
        max_batch=model.batch,
    )
    write_profile(host.directory / "profiles", made)


def planned(host: Ctl, rate_rps: float = 25.0, slo_ms: float = SLO_MS) -> dict[str, Any]:
    """A plan for one workload."""
    return planned_for(host, SPEC.format(model=MODEL.name, slo_ms=slo_ms, rate_rps=rate_rps))


def planned_for(host: Ctl, spec: str) -> dict[str, Any]:
    """The plan for a spec."""
    (host.directory / "spec.yaml").write_text(spec)
    made = host.directory / "made.json"
    where = ["--profiles", str(host.directory / "profiles"), "--allow", "all-cores"]
    host.bare("plan", "spec.yaml", "--output", str(made), *where)
    document: dict[str, Any] = json.loads(made.read_text())
    return document


def of_single_requests(document: dict[str, Any]) -> dict[str, Any]:
    """The plan with a batch of one, as an operator may have chosen it, and a share for it."""
    (partition,) = document["gpus"][0]["partitions"]
    partition["percent"], partition["models"][0]["batch"] = PERCENT, 1
    return document


def applied(host: Ctl, document: dict[str, Any], *more: str, ports: bool = True) -> None:
    """Apply a plan that follows the load."""
    follow = ("--set", "serve.follow_load={}", "--allow", "all-cores")
    host.apply(document, *follow, "--profiles", str(host.directory / "profiles"), *more, ports=ports)


Layout = list[tuple[str, float, int]]
"""GPU, share and batch of each partition."""


def plan(host: Ctl) -> dict[str, Any]:
    """The plan that runs."""
    document: dict[str, Any] = json.loads((host.files / "plan.json").read_text())
    return document


def layout(host: Ctl) -> Layout:
    return [
        (gpu["id"], partition["percent"], partition["models"][0]["batch"])
        for gpu in plan(host)["gpus"]
        for partition in gpu["partitions"]
    ]


@dataclass(frozen=True)
class Step:
    """A change of the rate at a time since the epoch, how long the plan took to follow, and what ran then.

    `after_verdict_s` is the part of it after the decision to look for a plan, `started` are the new servers.
    """

    at_s: float
    rate_rps: float
    took_s: float
    layout: Layout
    events: list[str]
    after_verdict_s: float
    started: int


def followed(host: Ctl, steps: Sequence[tuple[float, float]]) -> list[Step]:
    """A fleet planned for 25 requests/s, then the rates and deadlines of `steps`; no request may fail."""
    applied(host, of_single_requests(planned(host)), "--set", "serve.follow_load.stabilisation_s=20")
    found = []
    with loaded(host, 25.0) as load:
        await_rate(host)
        for rate, deadline_s in steps:
            since = time.time()
            load.rate_rps = rate
            event = await_plan(host, rate, since, deadline_s)
            decided = host.events("load", since)
            searched = [(e, s) for e in decided if (s := re.search(r"found in ([0-9.]+) s", e.reason))]
            started = re.search(r"([0-9]+) servers? started", event.reason)
            assert started is not None
            verdict_s = max(e.at_s - float(s[1]) for e, s in searched if e.at_s <= event.at_s)
            after_s = event.at_s - verdict_s
            reasons = [e.reason for e in decided]
            took_s = event.at_s - since
            found.append(Step(since, rate, took_s, layout(host), reasons, after_s, int(started[1])))
            print(found[-1])
    assert load.failed() == []
    return found


def await_plan(host: Ctl, rate_rps: float, since_s: float, deadline_s: float) -> Event:
    """The event of the plan for the new rate. What was measured across the step gives one for less before.

    A plan for less has fewer servers: it is for all that these hold, whatever arrives.
    """
    rises, servers = rate_rps > planned_rps(host), len(layout(host))

    def follows() -> bool:
        is_for_it = planned_rps(host) >= 0.85 * rate_rps if rises else len(layout(host)) < servers
        return is_for_it and bool(applied_since())

    def applied_since() -> list[Event]:
        """Those after the last decision: the plan is written between the two events."""
        decided_s = max((e.at_s for e in host.events("load", since_s)), default=math.inf)
        return [e for e in host.events("apply", decided_s) if "following the load" in e.reason]

    until(follows, deadline_s, f"a plan for {rate_rps:g}/s: {host.events()}")
    return applied_since()[-1]


def planned_rps(host: Ctl) -> float:
    """What the plan that runs is for."""
    return sum(w["rate_rps"] for g in plan(host)["gpus"] for p in g["partitions"] for w in p["workloads"])


def await_rate(host: Ctl) -> None:
    """Wait until the controller has measured the rate: it settles meanwhile."""

    def measured() -> bool:
        seen = read_rates(host.files / "rates.json")
        return seen is not None and (seen.rates[0].lower_rps or 0.0) > 15.0 and seen.following == "yes"

    until(measured, 60.0, "the rate is measured and followed")


def brief_controller(host: Ctl) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """A controller that records and reviews every few seconds."""
    return host.running(program=(sys.executable, str(BRIEF_CONTROLLER)))
