"""Whole commands: the first plan of an installation, every further one, and the verbs that only look.

    python -m benchmarks.plans.first_plan [SECTION ...]

Sections: cold, warm, greedy, look; all unless named. cold: `ctl plan` with an empty kernel cache.
warm: `ctl plan` with a full cache. greedy: `ctl plan --strategy igniter`. look: `ctl
status` and `ctl events` of a fleet whose servers are gone. Warm figures are medians of seven runs. All are
CPU seconds, which other work on the host stretches less than wall seconds. Exits 1 where an aim is missed.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Figures, chosen
from benchmarks.plans.report import spec_of
from controlplane.domain.fleet import GatewayConfig
from controlplane.files.fleets import FleetFiles, FleetSettings
from controlplane.files.plans import read_plan

CTL = Path(sys.executable).parent / "ctl"
COUNTS = (12, 200, 1000)
COLD_AIMS = {12: 3.0, 200: 8.0}
WARM_AIMS = {12: 2.0, 200: 4.0, 1000: 6.0}
GREEDY_AIMS = {12: 0.35, 200: 0.45, 1000: 0.8}
LOOK_AIM = 0.3
RUNS = 7


Row = tuple[str, float, float | None]
"""A command, its CPU seconds and their aim."""


class Installation:
    """A folder with caches, state, specs and plans of its own, as after installing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *arguments: object) -> float:
        """The CPU seconds of a command."""
        # Installing writes bytecode; where that is switched off, each run would compile all of it again.
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {
            "NUMBA_CACHE_DIR": str(self.folder / "kernels"),
            "PYTHONPYCACHEPREFIX": str(self.folder.parent / "bytecode"),
            "XDG_STATE_HOME": str(self.folder / "state"),
        }
        before = _cpu_s()
        done = subprocess.run(
            [CTL, *map(str, arguments)], env=env, cwd=self.folder, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"ctl {' '.join(map(str, arguments))}: {done.stderr}")
        return _cpu_s() - before

    def again(self, *arguments: object) -> float:
        """The median of several runs, after a first one that fills the caches."""
        self.run(*arguments)
        return statistics.median(self.run(*arguments) for _ in range(RUNS))

    def spec(self, count: int) -> Path:
        return spec_of(count, self.folder)

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
    """With an empty kernel cache."""
    # Installing writes the bytecode of numba and scipy too, which iGniter does not import.
    other = _installation(folder / "other")
    other.run("plan", other.spec(12), "-o", other.plan(12))
    for count in COUNTS:
        new = _installation(folder / f"new-{count}")
        first = new.run("plan", new.spec(count), "-o", new.plan(count))
        yield f"cold plan, {count} workloads", first, COLD_AIMS.get(count)


def warm(folder: Path) -> Iterator[Row]:
    used = _installation(folder / "used")
    for count in COUNTS:
        yield f"plan, {count} workloads", used.again("plan", used.spec(count)), WARM_AIMS[count]


def greedy(folder: Path) -> Iterator[Row]:
    used = _installation(folder / "greedy")
    for count in COUNTS:
        took = used.again("plan", "--strategy", "igniter", used.spec(count))
        yield f"plan --strategy igniter, {count} workloads", took, GREEDY_AIMS[count]


def look(folder: Path) -> Iterator[Row]:
    used = _installation(folder / "look")
    used.run("plan", "--strategy", "igniter", used.spec(12), "-o", used.plan(12))
    used.record_fleet(used.plan(12))
    for verb in ("status", "events"):
        yield verb, used.again(verb), LOOK_AIM


def _installation(folder: Path) -> Installation:
    folder.mkdir()
    new = Installation(folder)
    new.run("plan", "--strategy", "igniter", new.spec(12))  # writes bytecode; it needs no kernel
    return new


SECTIONS = {"cold": cold, "warm": warm, "greedy": greedy, "look": look}


def main() -> int:
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="first_plan.") as scratch:
        for name in chosen(sys.argv[1:], SECTIONS):
            for command, cpu_s, aim_s in SECTIONS[name](Path(scratch)):
                figures.add(command, cpu_s, "CPU s", at_most=aim_s)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
