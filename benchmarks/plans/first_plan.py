"""Whole commands: the first plan of an installation, every further one, and the verbs that only look.

    python -m benchmarks.plans.first_plan [SECTION ...]

Sections: cold, warm, greedy, look; all unless named. cold: `ctl plan` with an empty kernel cache, then what
another verb compiles. warm: `ctl plan` with a full cache. greedy: `ctl plan --strategy igniter`. look: `ctl
status` and `ctl events` of a fleet whose servers are gone. Warm figures are medians of seven runs. Aims are
compared with CPU seconds, which other work on the host stretches less than wall seconds. Exits 1 where an aim
is missed.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.fleet import GatewayConfig
from controlplane.files.fleets import FleetFiles, FleetSettings
from controlplane.files.plans import read_plan

DATA = Path(__file__).parents[2] / "tests" / "data"
CTL = Path(sys.executable).parent / "ctl"
COUNTS = (12, 200, 1000)
COLD_AIMS = {12: 3.0, 200: 8.0}
GREEDY_AIMS = {12: 0.35, 200: 0.45, 1000: 0.8}
LOOK_AIM = 0.3
RUNS = 7


@dataclass(frozen=True)
class Took:
    """One run of a command: seconds, and how many kernels were compiled."""

    cpu_s: float
    wall_s: float
    compiled: int


@dataclass(frozen=True)
class Row:
    command: str
    took: Took
    aim_s: float | None = None

    @property
    def missed(self) -> bool:
        return self.aim_s is not None and self.took.cpu_s > self.aim_s

    def __str__(self) -> str:
        took, aim = self.took, self.aim_s
        beside = f"{'–':>5}  {'–':>5}" if aim is None else f"{aim:5.2f}  {took.cpu_s / aim:5.2f}"
        missed = "  missed" if self.missed else ""
        return (
            f"{self.command:44}  {took.cpu_s:6.2f}  {took.wall_s:6.2f}  {beside}  {took.compiled:8}{missed}"
        )


class Installation:
    """A folder with caches, state, specs and plans of its own, as after installing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *arguments: object) -> Took:
        # Installing writes bytecode; where that is switched off, each run would compile all of it again.
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {
            "NUMBA_CACHE_DIR": str(self.folder / "kernels"),
            "PYTHONPYCACHEPREFIX": str(self.folder.parent / "bytecode"),
            "XDG_STATE_HOME": str(self.folder / "state"),
        }
        before, begin = _cpu_s(), time.perf_counter()
        done = subprocess.run(
            [CTL, *map(str, arguments)], env=env, cwd=self.folder, capture_output=True, text=True
        )
        wall_s, cpu_s = time.perf_counter() - begin, _cpu_s() - before
        if done.returncode:
            raise SystemExit(f"ctl {' '.join(map(str, arguments))}: {done.stderr}")
        return Took(cpu_s, wall_s, sum(line.startswith("  ") for line in done.stderr.splitlines()))

    def again(self, *arguments: object) -> Took:
        """The run of median CPU time, after a first one that fills the caches."""
        self.run(*arguments)
        return sorted((self.run(*arguments) for _ in range(RUNS)), key=lambda took: took.cpu_s)[RUNS // 2]

    def spec(self, count: int) -> Path:
        listed = json.loads((DATA / f"workloads_{count}.json").read_text())["workloads"]
        rows = [
            {"name": w["id"], "model": w["model"], "slo_ms": w["slo_ms"], "rate_rps": w["rate"]}
            for w in listed
        ]
        gpus = [{"type": "v100", "price_per_hour": 3.06}]
        path = self.folder / f"{count}.yaml"
        lines = [f"  - {json.dumps(row)}" for row in rows]
        path.write_text("\n".join(["schema_version: 1", f"gpus: {json.dumps(gpus)}", "workloads:", *lines]))
        return path

    def plan(self, count: int) -> Path:
        return self.folder / f"{count}.json"

    def record_fleet(self, plan: Path) -> None:
        """What `ctl apply` leaves in the state directory, without servers."""
        files = FleetFiles(self.folder / "state" / "trisect", "default")
        files.write_plans(read_plan(plan)[0], None)
        files.write_settings(
            FleetSettings("process", str(self.folder), str(self.folder), {}, GatewayConfig())
        )


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cold(folder: Path) -> Iterator[Row]:
    # Installing writes the bytecode of numba and scipy too, which iGniter does not import.
    other = _installation(folder / "other")
    other.run("plan", other.spec(12), "-o", other.plan(12))
    for count in COUNTS:
        new = _installation(folder / f"new-{count}")
        first = new.run("plan", new.spec(count), "-o", new.plan(count))
        yield Row(f"plan, {count} workloads", first, COLD_AIMS.get(count))
        yield Row(
            f"  then simulate --seconds 10, {count}", new.run("simulate", new.plan(count), "--seconds", 10)
        )


def warm(folder: Path) -> Iterator[Row]:
    used = _installation(folder / "used")
    for count in COUNTS:
        yield Row(f"plan, {count} workloads", used.again("plan", used.spec(count)))


def greedy(folder: Path) -> Iterator[Row]:
    used = _installation(folder / "greedy")
    for count in COUNTS:
        took = used.again("plan", "--strategy", "igniter", used.spec(count))
        yield Row(f"plan --strategy igniter, {count} workloads", took, GREEDY_AIMS[count])


def look(folder: Path) -> Iterator[Row]:
    used = _installation(folder / "look")
    used.run("plan", "--strategy", "igniter", used.spec(12), "-o", used.plan(12))
    used.record_fleet(used.plan(12))
    for verb in ("status", "events"):
        yield Row(verb, used.again(verb), LOOK_AIM)


def _installation(folder: Path) -> Installation:
    folder.mkdir()
    new = Installation(folder)
    new.run("plan", "--strategy", "igniter", new.spec(12))  # writes bytecode; it needs no kernel
    return new


SECTIONS = {"cold": cold, "warm": warm, "greedy": greedy, "look": look}


def main() -> None:
    missed = 0
    print(f"{'command':44}  {'CPU s':>6}  {'wall s':>6}  {'aim':>5}  {'ratio':>5}  compiled")
    with tempfile.TemporaryDirectory(prefix="first_plan.") as scratch:
        for name in sys.argv[1:] or SECTIONS:
            print(f"{name}:")
            for row in SECTIONS[name](Path(scratch)):
                print(f"  {row}", flush=True)
                missed += row.missed
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
