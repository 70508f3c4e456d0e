"""From the death of a server to its shadow's answers, by the shadow's policy, on real servers.

    python -m benchmarks.serving.shadows             hot, shared, warm: two minutes
    python -m benchmarks.serving.shadows --docker    in containers

Three partitions of a core under Poisson arrivals, 100 requests/s of one and 20 of the others; the first one's
server is killed. `answered` is when the first request that began after the death was answered, `redirected`
when the new routes stood, `whole` when every partition had its servers and shadows again. `lost` are requests
of the killed server's partition, in brackets those that it cannot have held. The memory is that of all
servers before the death.

Exits 1 where a hot or shared shadow answers later than `within_s` by default, a request is lost that the dead
server did not hold, or a neighbour's request fails. A warm shadow has to load first.
"""

import argparse
import sys
import time
from contextlib import ExitStack

import guard_rig as rig
from guard_rig import Guarded, Load

from benchmarks.harness import Figures, show, table
from benchmarks.support.slower_model import fleet_of
from controlplane.domain.workload import LOADED, WITHIN_S, ShadowPolicy

RATES_RPS = {"a": 100.0, "b": 20.0, "c": 20.0}
SLO_MS = 1000.0
WORK_S = 0.0005
POLICIES = (ShadowPolicy.HOT, ShadowPolicy.SHARED, ShadowPolicy.WARM)


def standing_by(fleet: Guarded) -> None:
    """Wait until a shadow of every partition is ready, as far as its policy has it loaded."""
    for name in RATES_RPS:
        fleet.await_guarding(name, lambda state: state.standby_ready and not state.lent, "stands by")


def killed(policy: ShadowPolicy, figures: Figures, *, docker: bool) -> tuple[str, ...]:
    """Kill a server whose shadow has this policy; return the row of the table."""
    with fleet_of(docker) as fleet:
        fleet.apply(rig.three(policy.value, RATES_RPS, SLO_MS))
        standing_by(fleet)
        with ExitStack() as stack:
            loads = {n: stack.enter_context(Load(fleet.grpc, n, r, WORK_S)) for n, r in RATES_RPS.items()}
            for load in loads.values():
                load.await_answers(40)
            launcher = fleet.launcher()
            servers = fleet.running_servers()
            memory_mb = sum(launcher.usage(server).memory_mb or 0.0 for server in servers)
            hit_s, dead_s = rig.kill(fleet.tree(fleet.active("a")))
            moved_s = fleet.await_event("commit", since_s=hit_s).at_s
            loads["a"].await_answers(40, since_s=dead_s)
            standing_by(fleet)
            whole_s = time.time()
    own = loads["a"]
    answered_s = min(r.ended_s for r in own.requests if r.error is None and r.started_s >= dead_s)
    unheld = [r for r in own.unexplained(hit_s, dead_s) if policy in LOADED]
    neighbours = sum(len(loads[name].failed()) for name in "bc")
    if policy in LOADED:
        figures.add(f"{policy}: the shadow's first answer", answered_s - hit_s, "s", at_most=WITHIN_S)
        figures.add(f"{policy}: lost, and not held by the dead server", len(unheld), at_most=0)
    figures.add(f"{policy}: failed requests of neighbours", neighbours, at_most=0)
    return (
        policy.value,
        f"{answered_s - hit_s:.2f}",
        f"{moved_s - hit_s:.2f}",
        f"{whole_s - hit_s:.1f}",
        f"{len(own.failed())} ({len(unheld)}) of {len(own.requests)}",
        str(len(servers)),
        f"{memory_mb:.0f}",
    )


def main() -> int:
    """Kill a server under each policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docker", action="store_true", help="servers are containers")
    docker = parser.parse_args().docker
    figures = Figures()
    made = table(
        "seconds from the death", "shadow", ">answered", ">redirected", ">whole", ">lost", ">servers", ">MB"
    )
    for policy in POLICIES:
        made.add_row(*killed(policy, figures, docker=docker))
    show(made)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
