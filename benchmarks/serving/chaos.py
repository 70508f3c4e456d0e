"""What breaks, what a client loses by it, how long until all is well: real Tritons, HAProxy and clients.

    python -m benchmarks.serving.chaos [--faults crash,hang,...] [--repeats N]

One fleet with a hot shadow under Poisson load over gRPC; the faults come one after the other. `in flight` are
the requests that the client had open at the fault. `lost` are failed requests, `recorded` those that the
controller's minutes tell of: `held` were in flight then, `sent` came between the fault and the guard's new
routes, `later` should not be. `answered` is when the first
request sent after the fault was answered, `redirected` when the new routes stood, `guarded` when a shadow
stood by again: seconds from the fault.
"""

import argparse
import math
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import guard_rig as rig
import psutil
from ctl_fleet import plan
from guard_rig import Guarded

from benchmarks.harness import Figures, show, table
from controlplane.runtime.fleet.history import History

RATE_RPS = 60.0
SLO_MS = 150.0
WORK_S = 0.003
PERCENT = 40.0
FAULTS = ("crash", "hang", "stub", "shadow", "haproxy", "facade", "monitor", "supervisor", "controller")
"""And `both`, active server and shadow at once: beside the others that would open the breaker."""
NEEDS_REDIRECT = frozenset({"crash", "hang", "stub", "both"})
ANSWERED_S = 1.0
WRITTEN_S = 15.0
"""HAProxy's counters are read every 5 s, and a minute is written every 5 s."""


@dataclass(frozen=True)
class Row:
    """One fault, survived."""

    fault: str
    requests: int
    in_flight: int
    lost: int
    recorded: int
    held: int
    sent: int
    later: int
    why: dict[str, int]
    answered_s: float
    redirected_s: float | None
    guarded_s: float
    left_behind: int


def victims(fleet: Guarded, fault: str) -> list[psutil.Process]:
    triton, *stubs = fleet.tree(fleet.active("w"))
    match fault:
        case "crash":
            return [triton]
        case "hang":
            return [triton, *stubs]
        case "stub":
            return stubs
        case "shadow":
            (standby,) = [s for s in fleet.launched() if s.name != fleet.active("w")]
            return fleet.tree(standby.name)
        case "both":
            return [process for s in fleet.launched() for process in fleet.tree(s.name)]
        case "controller":
            return [fleet.controller()]
        case _:
            return fleet.gateway_processes(fault)


def recorded(fleet: Guarded) -> int:
    """The failed requests that the record tells of, until now."""
    return sum(minute.failed for minute in History(fleet.files / "history.sqlite").minutes(0.0))


def survive(fleet: Guarded, fault: str, seed: int) -> Row:
    before = {p.pid for p in fleet.processes(TRISECT_FLEET=fleet.fleet)}
    redirected_s, known = None, recorded(fleet)
    with rig.Load(fleet.grpc, "w", RATE_RPS, WORK_S, seed=seed) as load:
        time.sleep(2.0)
        hit = victims(fleet, fault)
        assert hit, f"nothing to hit for {fault}"
        hit_s = time.time()
        for process in hit:
            process.send_signal(signal.SIGSTOP if fault == "hang" else signal.SIGKILL)
        if fault in NEEDS_REDIRECT:
            redirected_s = fleet.await_event("commit", since_s=hit_s).at_s - hit_s
        if fault == "controller":
            # Whoever keeps it up starts it again: here, as systemd would.
            fleet.start_controller()
        if fault == "shadow":
            fleet.await_event("launch", since_s=hit_s)
        time.sleep(1.0)
        fleet.await_guarded()
        guarded_s = time.time() - hit_s
    answered = [r.ended_s for r in load.requests if r.started_s > hit_s and r.error is None]
    now = {p.pid for p in fleet.processes(TRISECT_FLEET=fleet.fleet)}
    # Two servers of two processes each; what is more was left by the dead.
    left = len([pid for pid in now if pid not in before]) if fault not in (*NEEDS_REDIRECT, "shadow") else 0
    left += max(0, len(now) - len(before))
    lost = load.failed()
    deadline = time.monotonic() + WRITTEN_S
    while recorded(fleet) - known < len(lost) and time.monotonic() < deadline:
        time.sleep(0.2)
    over_s = math.inf if redirected_s is None else hit_s + redirected_s
    held, later = sum(r.started_s <= hit_s for r in lost), sum(r.started_s > over_s for r in lost)
    why = Counter(str(r.error).partition("] ")[2] or str(r.error) for r in lost)
    in_flight = sum(r.started_s <= hit_s < r.ended_s for r in load.requests)
    return Row(
        fault,
        len(load.requests),
        in_flight,
        len(lost),
        recorded(fleet) - known,
        held,
        len(lost) - held - later,
        later,
        dict(why),
        min(answered) - hit_s,
        redirected_s,
        guarded_s,
        left,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--repeats", type=int, default=1, help="of all faults, each time on a new fleet")
    options = parser.parse_args()
    rows = []
    for repeat in range(options.repeats):
        with tempfile.TemporaryDirectory(prefix="trisect-chaos-") as name, Guarded(Path(name)) as fleet:
            fleet.apply(plan(rig.partition("w", PERCENT, rate_rps=RATE_RPS, slo_ms=SLO_MS)))
            fleet.await_guarded()
            for i, fault in enumerate(options.faults.split(",")):
                rows.append(survive(fleet, fault, seed=100 * repeat + i))
    counted = ("requests", "in_flight", "lost", "recorded", "held", "sent", "later")
    columns = (*(f">{name}" for name in counted), ">answered s", ">redirected s", ">guarded s", "why")
    made, figures = table("faults", "fault", *columns), Figures()
    for r in rows:
        redirected = "–" if r.redirected_s is None else f"{r.redirected_s:.2f}"
        made.add_row(
            *(r.fault, *(str(getattr(r, name)) for name in counted)),
            *(f"{r.answered_s:.2f}", redirected, f"{r.guarded_s:.1f}"),
            "; ".join(f"{count}: {words[:60]}" for words, count in r.why.items()),
        )
    show(made, width=170)
    for fault in dict.fromkeys(r.fault for r in rows):
        own = [r for r in rows if r.fault == fault]
        answered_s = statistics.median(r.answered_s for r in own)
        figures.add(f"{fault}: first answer after it, median", answered_s, "s", at_most=ANSWERED_S)
        figures.add(f"{fault}: lost that were not in flight", sum(r.sent + r.later for r in own), at_most=0)
        figures.add(f"{fault}: processes left behind", max(r.left_behind for r in own), at_most=0)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
