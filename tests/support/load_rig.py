"""A fleet whose load is followed on simulated time, with searches that answer at once."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from build import Clock

from controlplane.control.autoscaler.state import Kind, LoadState, Proposal, Propose, Unheld
from controlplane.domain.device import Stock
from controlplane.domain.errors import EngineError
from controlplane.domain.observation import Answer, Event
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.files.fleets import FleetFiles
from controlplane.files.following import Following
from controlplane.files.plans import plan_hash, write_plan
from controlplane.runtime.autoscaler.autoscaler import Autoscaler
from controlplane.runtime.fleet.preflight import ApplyRequest


def plan(rate_rps: float, gpus: int = 1) -> Plan:
    parts = [
        Partition(f"W-{i}", 60.0, (ServedModel("m", 2),), (Placement("W", "w", "m", rate_rps / gpus, 100.0),))
        for i in range(gpus)
    ]
    planned = tuple(PlannedGpu(f"cpu-{i}", "cpu", (part,)) for i, part in enumerate(parts))
    return Plan("joint", Rule.P99, "ours", planned, quantile=0.95, seed=1, spec="the spec")


@dataclass
class Fleet:
    """The part of a fleet that following needs; `refuses` is why it applies nothing."""

    files: FleetFiles
    clock: Clock = field(default_factory=Clock)
    name: str = "f"
    launcher: None = None
    refuses: str = ""
    applied: list[str] = field(default_factory=list)

    def apply(self, request: ApplyRequest) -> None:
        before = self.files.plan()
        assert before is not None
        assert request.made_from == plan_hash(before)
        if self.refuses:
            raise EngineError(self.refuses)
        self.applied.append(request.cause)
        self.files.write_plans(request.plan, before)


class Planning:
    """Answers at once with a plan for what is asked for, on two GPUs above 100/s, if there are two."""

    def __init__(self, files: FleetFiles, gpus: int = 2) -> None:
        self.files = files
        self.gpus = gpus

    def ended(self) -> bool:
        return False

    def ask(self, asked: Propose, state: LoadState, stock: Stock) -> None:
        self.asked = asked

    def answer(self) -> Proposal:
        (rate,) = self.asked.rates_rps
        unheld = (Unheld("W", 100.0, "no room"),) if rate > 100.0 * self.gpus else ()
        rate = min(rate, 100.0 * self.gpus)
        new = plan(rate, 2 if rate > 100.0 else 1)
        write_plan(self.files.following.proposal, new)
        before = self.files.plan()
        assert before is not None
        costs = float(len(before.gpus)), float(len(new.gpus))
        return Proposal(
            self.asked.number,
            Kind.PLAN,
            (rate,),
            *costs,
            0.5,
            unheld,
            summary="found",
            made_from=plan_hash(before),
        )

    def close(self) -> None:
        pass


def rewrite(path: Path, write: Callable[[], None]) -> None:
    """Write a file again, with another time of change however coarse the disk's clock is."""
    before_ns = path.stat().st_mtime_ns
    write()
    os.utime(path, ns=(before_ns + 10**9, before_ns + 10**9))


@dataclass
class Load:
    """Controllers that follow the load, what they report, and the searches that they begin."""

    fleet: Fleet
    told: list[Event] = field(default_factory=list)
    searches: list[Any] = field(default_factory=list)
    follows: list[Autoscaler] = field(default_factory=list)

    def follow(self, search: Callable[[], Any] | None = None, **how: Any) -> Autoscaler:
        def planner(name: str) -> Any:
            self.searches.append(Planning(self.fleet.files) if search is None else search())
            return self.searches[-1]

        self.close()
        made = Autoscaler(
            cast(Any, self.fleet), self.told.append, **{"plan_only": False, **how}, search=planner
        )
        self.follows.append(made)
        return made

    def run(self, rates: Sequence[int]) -> None:
        """One second for each rate, with requests that arrive evenly and take 5 ms."""
        (follows,) = self.follows
        for rate in rates:
            second = self.fleet.clock.now_s
            answers = [Answer(second + (i + 0.5) / rate, 5.0, False, "w", "s") for i in range(rate)]
            self.fleet.clock.now_s += 1.0
            follows.hear(answers)
            follows._applying.wait()  # an apply takes no simulated time
            follows.step(0.0)

    def stop_following(self) -> None:
        kept = self.fleet.files.directory / "following" / "following.json"
        rewrite(kept, lambda: self.fleet.files.following.write(Following()))

    def close(self) -> None:
        while self.follows:
            self.follows.pop().close()
