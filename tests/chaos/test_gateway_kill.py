"""kill -9 of the active Triton under load: at most the calls in flight on it are lost."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import gateway_rig as rig
import pytest

from controlplane.domain.fleet import Route
from controlplane.gateway.haproxy import HaproxyGateway

pytestmark = pytest.mark.e2e

WORST_S = 0.8
"""Short of the second for which HAProxy would go on trying a server that is gone."""
AROUND_S = 1.0


@dataclass(frozen=True)
class Kill:
    """`began` and `ended` are the monotonic times of the signal and of the server's last breath.

    It closes its connections in between, and what is sent on them until then is in flight on it.
    """

    began: float
    ended: float
    server: str

    def held(self, outcome: rig.Outcome, noticed_s: float) -> bool:
        """Whether it may have been on the server when that died."""
        return outcome.started <= self.ended + noticed_s and self.began <= outcome.ended

    def near(self, outcome: rig.Outcome) -> bool:
        """Whether it could feel the kill."""
        return outcome.started <= self.began + AROUND_S and self.began <= outcome.ended


@pytest.mark.parametrize(
    ("times", "rate_rps"),
    [(2, 150), pytest.param(20, 400, marks=[pytest.mark.soak, pytest.mark.timeout(400)])],
)
def test_a_killed_server_loses_only_what_it_held(tmp_path: Path, times: int, rate_rps: int) -> None:
    models = {"echo": "echo"}
    with rig.tritons(tmp_path, one=models, two=models) as running, rig.a_gateway(tmp_path) as (made, ports):
        load = rig.Load(ports)
        kills: list[Kill] = []

        async def run() -> None:
            stop = asyncio.Event()
            await asyncio.to_thread(_route, made, running, "one")
            task = asyncio.create_task(load.unary(rate_rps, stop))
            for turn in range(times):
                active, other = ("one", "two") if turn % 2 == 0 else ("two", "one")
                await asyncio.sleep(0.8)
                began = time.monotonic()
                await asyncio.to_thread(running[active].kill)
                kills.append(Kill(began, time.monotonic(), active))
                await asyncio.sleep(AROUND_S)
                running[active] = await asyncio.to_thread(_again, tmp_path, running[active], models)
                await asyncio.to_thread(_route, made, running, other)
            await asyncio.sleep(0.5)
            stop.set()
            await task

        asyncio.run(run())
        failed = load.failed()
        worst = max(_took(o) for o in load.outcomes if any(kill.near(o) for kill in kills))
        # What this host does to a request that meets no dead server is not the gateway's.
        calm = max(_took(o) for o in load.outcomes if not any(kill.near(o) for kill in kills))
        noticed_s = rig.NOTICED_S + max(_took(o) for o in load.outcomes if o.ended < kills[0].began)
        held = [sum(kill.held(o, noticed_s) for o in load.outcomes) for kill in kills]
        lost = [sum(kill.held(o, noticed_s) for o in failed) for kill in kills]
        print(
            f"\n{times} kills under {rate_rps} req/s: {len(load.outcomes)} requests, in flight at the kills "
            f"{held}, lost {lost}; slowest near a kill {1000 * worst:.0f} ms (else "
            f"{1000 * calm:.0f} ms), first answer of the shadow after "
            f"{1000 * median(_takeover(load, kill) for kill in kills):.1f} ms (median)"
        )
        for outcome in failed:
            after = min((outcome.started - kill.ended for kill in kills), key=abs)
            print(f"  lost: {outcome.kind}, begun {1000 * after:+.1f} ms from a death: {outcome.error}")
        assert [o for o in failed if not any(kill.held(o, noticed_s) for kill in kills)] == []
        assert [o for o in failed if rig.NOBODY_READY in str(o.error)] == [], "the other one lives"
        assert worst < WORST_S + calm


def _took(outcome: rig.Outcome) -> float:
    return outcome.ended - outcome.started


def _route(made: HaproxyGateway, running: dict[str, rig.Triton], active: str) -> None:
    shadow = "two" if active == "one" else "one"
    made.commit({"echo": Route((running[active].backend,), running[shadow].backend)})


def _again(directory: Path, before: rig.Triton, models: dict[str, str]) -> rig.Triton:
    """The same server on the ports it had, as a launcher would not do: the harder case for the gateway."""
    ports = (before.http_port, before.grpc_port, before.metrics_port)
    triton = rig.launch(directory, before.name, models, ports=ports)
    rig.await_ready(triton)
    return triton


def _takeover(load: rig.Load, kill: Kill) -> float:
    """Seconds from a kill to the first answer of another server to a request that began after it."""
    later = (o.ended for o in load.outcomes if o.started > kill.began and o.server not in (None, kill.server))
    return min(later) - kill.began
