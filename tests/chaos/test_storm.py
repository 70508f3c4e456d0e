"""Faults at random under traffic of walking rates.

What is lost is counted against what was in flight, and what the fleet holds afterwards against what it held
before. The clock that is set is that of the fleet's processes only, and where there is a C compiler.
"""

import contextlib
import http.client
import json
import os
import random
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import gateway_rig
import psutil
import pytest
import stepped_clock
from background import Background
from ctl_fleet import Ctl, partition, plan, small_disk
from held_resources import PROGRAMS, Held, MemorySlopes, processes, report
from steady_clients import CLIENTS, PAUSE_S, Traffic
from stepped_clock import SteppedClock

NOTICED_S = 3.0
SERVED_S = 90.0
"""The longest time until the fleet is whole again, on a busy host."""
CALM_PART = 0.2
"""Of the time there are no faults, so that memory's slopes can be measured."""

SOAK = (pytest.mark.soak, pytest.mark.timeout(2400))


def cost(fault: str) -> float:
    """The most requests that a fault may cost: one of each client, which was in flight.

    A server whose model's process is dead or stands still fails each request until the guard has noticed.
    """
    return CLIENTS * (1 + NOTICED_S / PAUSE_S) if fault.endswith(("model", "server")) else CLIENTS


class Unit(Background):
    """The fleet's controller, started again whenever it ended, as systemd does."""

    def __init__(self, host: Ctl) -> None:
        super().__init__()
        self._host = host

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._host.running("controller") as serving:
                while serving.poll() is None and not self._stop.wait(0.1):
                    pass
            self._stop.wait(2.0)


@dataclass
class Storm:
    """One fault after another; `faults` are the times of each kind."""

    host: Ctl
    dice: random.Random
    clock: SteppedClock | None
    faults: list[tuple[float, str]] = field(default_factory=list)

    def strike(self) -> None:
        kinds: list[tuple[str, Callable[[], None]]] = [
            *((f"kill {program}", partial(self.kill, program)) for program in PROGRAMS),
            *((f"stop {program}", partial(self.pause, program)) for program in PROGRAMS),
            ("full disk", self.fill),
            ("truncated file", self.truncate),
            ("killed apply", self.killed_apply),
            *((f"no descriptors {program}", partial(self.starve, program)) for program in STARVED),
            ("taken ports", self.take_ports),
            ("poison", self.poison),
            ("nested JSON", self.nest),
        ]
        if self.clock is not None:
            kinds.append(("clock step", partial(self.step_clock, self.clock)))
        name, fault = self.dice.choice(kinds)
        self.faults.append((time.monotonic(), name))
        fault()

    def behind(self, failed: list[tuple[float, str]]) -> Counter[tuple[str, str]]:
        """Failures by the fault before them and by their error."""
        found: Counter[tuple[str, str]] = Counter()
        for at, error in failed:
            before = [name for struck_at, name in self.faults if struck_at <= at]
            found[before[-1] if before else "none", error] += 1
        return found

    def kill(self, program: str) -> None:
        victims = processes(self.host, program)
        if victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.dice.choice(victims).kill()

    def pause(self, program: str) -> None:
        victims = processes(self.host, program)
        if not victims:
            return
        victim = self.dice.choice(victims)
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.suspend()
            try:
                time.sleep(self.dice.uniform(0.2, 2.0))
            finally:
                victim.resume()

    def starve(self, program: str) -> None:
        """No new descriptor for a moment."""
        for victim in processes(self.host, program)[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                before = victim.rlimit(psutil.RLIMIT_NOFILE)
                victim.rlimit(psutil.RLIMIT_NOFILE, (victim.num_fds(), before[1]))
                time.sleep(self.dice.uniform(0.2, 2.0))
                victim.rlimit(psutil.RLIMIT_NOFILE, before)

    def take_ports(self) -> None:
        """Another program listens on ports that servers are started on."""
        with contextlib.ExitStack() as taken:
            for port in self.dice.sample(range(20_000, 32_000), 300):
                with contextlib.suppress(OSError):
                    taken.enter_context(socket.create_server(("127.0.0.1", port)))
            self.kill("server")
            time.sleep(self.dice.uniform(1.0, 3.0))

    def poison(self) -> None:
        """A request of another endpoint that ends its server, and perhaps the shadow."""
        self.post("p", json.dumps(gateway_rig.POISON).encode())

    def nest(self) -> None:
        """JSON that ends a Triton that parses it."""
        assert self.post("a", b'{"inputs":' + b"[" * 10**6) != 200

    def post(self, endpoint: str, body: bytes) -> int:
        """The status of an inference; 0 without an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.host.http, timeout=10.0)
        try:
            connection.request("POST", f"/v2/models/{endpoint}/infer", body)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def fill(self) -> None:
        """Every byte of the state's disk, for a moment."""
        filler = self.host.files / "filler"
        try:
            with filler.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
                while stream.write(bytes(1 << 16)):
                    pass
            time.sleep(self.dice.uniform(0.2, 2.0))
        finally:
            filler.unlink(missing_ok=True)

    def truncate(self) -> None:
        """A file that is derived or only reported: losing it may cost nothing but itself."""
        names = ("guard.json", "journal.jsonl", "controller.pid", "gateway/restarts.jsonl")
        path = self.host.files / self.dice.choice(names)
        with contextlib.suppress(OSError):
            os.truncate(path, self.dice.randrange(path.stat().st_size + 1))

    def step_clock(self, clock: SteppedClock) -> None:
        """An hour forward or back, for all processes of the fleet and all commands."""
        clock.set(self.dice.choice((-3600, 0, 3600)))

    def killed_apply(self) -> None:
        self.host.cut_short(PLAN, self.dice.uniform(0.0, 3.0), ports=False)


PLAN = plan(partition("a", 30), partition("p", 20, model="text", shadow=False))
STARVED = ("supervisor", "facade", "monitor", "controller")
"""HAProxy needs a descriptor for each request, and counts those that it may have when it starts."""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Ctl]:
    """With its state on a small disk of its own, where this user may mount one."""
    with small_disk(tmp_path / "state", 16), Ctl(tmp_path, "storm") as here:
        shutil.copytree(gateway_rig.MODELS / "text", here.repository / "text")
        yield here


def await_whole(host: Ctl) -> None:
    """Until a command finds everything as planned, and a client is served."""
    deadline = time.monotonic() + SERVED_S
    while True:
        applied = host.apply(PLAN, "--as-planned", ports=False, exit_code=None)
        told = host.ctl("status", "--json", exit_code=None)
        whole = applied.returncode == 0 and told.returncode == 0
        if whole and json.loads(told.stdout)["controller"] is not None:
            host.infer("a")
            return
        assert time.monotonic() < deadline, f"{applied.stderr}{told.stderr}"
        time.sleep(0.5)


def await_released(host: Ctl, before: Held) -> tuple[list[str], Held]:
    """What is held beyond before once it is nothing or the time is over: shadows start, servers drain."""
    deadline = time.monotonic() + SERVED_S
    while True:
        after = Held.by(host)
        leaks = after.leaks(before)
        if not leaks or time.monotonic() >= deadline:
            return leaks, after
        time.sleep(0.5)


def calm(traffic: Traffic, dice: random.Random, seconds: float) -> None:
    """Walking rates without faults."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        traffic.walk(dice)
        time.sleep(1.0)


@pytest.mark.parametrize(
    "seconds", [20, pytest.param(120, id="120 s", marks=SOAK), pytest.param(1800, id="30 min", marks=SOAK)]
)
def test_faults_at_random_cost_what_was_in_flight(host: Ctl, seconds: float) -> None:
    seed = int(os.environ.get("TRISECT_STORM_SEED", "1"))
    clock = None if stepped_clock.COMPILER is None else SteppedClock(host.directory)
    host.environment.update({} if clock is None else clock.environment)
    host.apply(PLAN, "--no-controller")
    storm = Storm(host, random.Random(seed), clock)
    with Unit(host), Traffic(host) as traffic:
        await_whole(host)
        traffic.await_more(100, SERVED_S)
        before = Held.by(host)
        end = time.monotonic() + (1.0 - CALM_PART) * seconds
        while time.monotonic() < end:
            storm.strike()
            traffic.walk(storm.dice)
            time.sleep(storm.dice.uniform(0.5, 4.0))
        await_whole(host)
        healthy_since = time.monotonic()
        traffic.pause_s = PAUSE_S
        traffic.await_more(100, SERVED_S)
        with MemorySlopes(host) as slopes:
            leaks, after = await_released(host, before)
            calm(traffic, storm.dice, CALM_PART * seconds)
    report(before, after, slopes)
    struck = Counter(name for _, name in storm.faults)
    print(
        f"seed {seed}: {dict(struck)}; {len(traffic.failed)} of {traffic.done + len(traffic.failed)} failed"
    )
    for (fault, error), count in storm.behind(traffic.failed).most_common():
        print(f"  {count:5} behind {fault}: {error}")
    assert len(traffic.failed) <= sum(cost(name) for name in struck.elements())
    assert [at for at, _ in traffic.failed if at > healthy_since] == [], "whole again"
    assert leaks == []
    assert slopes.leaks() == []
