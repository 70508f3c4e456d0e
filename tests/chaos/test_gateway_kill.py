"""kill -9 of the active Triton under load: at most the calls in flight on it are lost."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import gateway_rig as rig
import pytest
from background import until

from controlplane.domain.fleet import Route
from controlplane.gateway.haproxy import HaproxyGateway

WORST_S = 0.8
"""Short of the second for which HAProxy would go on trying a server that is gone."""
AROUND_S = 1.0
ANSWERS = 50
"""So many show that a server serves."""


@dataclass(frozen=True)
class Kill:
    """`began` and `ended` are the monotonic times of the signal and of the server's last breath.

    It closes its connections in between, and what is sent on them until then is in flight on it.
    """

    began: float
    ended: float
    server: str

    def held(self, outcome: rig.Outcome, host: rig.HeldUp) -> bool:
        """Whether it may have been on the server when that died, or was sent before anybody had noticed."""
        noticed = self.ended + rig.NOTICED_S + 3 * host.usual_s + host.seconds(self.ended, outcome.started)
        return outcome.started <= noticed and self.began <= outcome.ended

    def near(self, outcome: rig.Outcome) -> bool:
        """Whether it could feel the kill."""
        return outcome.started <= self.began + AROUND_S and self.ended <= outcome.ended

    def cost_s(self, outcome: rig.Outcome, host: rig.HeldUp) -> float:
        """How long it took from the death on, as far as the host let it."""
        since = max(self.ended, outcome.started)
        return outcome.ended - since - host.seconds(since, outcome.ended)


@pytest.mark.parametrize(
    ("times", "rate_rps"),
    [(2, 150), pytest.param(20, 400, marks=[pytest.mark.soak, pytest.mark.timeout(400)])],
)
def test_a_killed_server_loses_only_what_it_held(tmp_path: Path, times: int, rate_rps: int) -> None:
    # Another name of the same model: one client's requests go by it to the server that is not killed.
    models = {"echo": "echo", "twin": "echo"}
    with rig.tritons(tmp_path, one=models, two=models) as running, rig.a_gateway(tmp_path) as (made, ports):
        load, bystander = rig.Load(ports), rig.Load(ports, "twin")
        kills: list[Kill] = []

        def answers(server: str, since: float) -> None:
            until(lambda: len(load.answered(server, since)) >= ANSWERS)

        _route(made, running, "one")
        with rig.under_load(bystander.one_by_one), rig.under_load(partial(load.unary, rate_rps)):
            since = time.monotonic()
            for turn in range(times):
                active, other = ("one", "two") if turn % 2 == 0 else ("two", "one")
                answers(active, since)
                began = time.monotonic()
                running[active].kill()
                kills.append(Kill(began, time.monotonic(), active))
                answers(other, kills[-1].ended)
                running[active] = _again(tmp_path, running[active], models)
                _route(made, running, other)
                since = time.monotonic()
            answers(other, since)
        assert bystander.failed() == []
        host = rig.HeldUp.seen_by(bystander)
        failed = load.failed()
        worst = max(kill.cost_s(o, host) for kill in kills for o in load.outcomes if kill.near(o))
        held = [sum(kill.held(o, host) for o in load.outcomes) for kill in kills]
        lost = [sum(kill.held(o, host) for o in failed) for kill in kills]
        calm = max(o.ended - o.started for o in load.outcomes if not any(kill.near(o) for kill in kills))
        print(
            f"\n{times} kills under {rate_rps} req/s: {len(load.outcomes)} requests, in flight at the kills "
            f"{held}, lost {lost}; slowest near a kill {1000 * worst:.0f} ms (else "
            f"{1000 * calm:.0f} ms), first answer of the shadow after "
            f"{1000 * median(_takeover(load, kill) for kill in kills):.1f} ms (median)"
        )
        for outcome in failed:
            after = min((outcome.started - kill.ended for kill in kills), key=abs)
            print(f"  lost: {outcome.kind}, begun {1000 * after:+.1f} ms from a death: {outcome.error}")
        assert [o for o in failed if not any(kill.held(o, host) for kill in kills)] == []
        assert [o for o in failed if rig.NOBODY_READY in str(o.error)] == [], "the other one lives"
        assert worst < WORST_S


def _route(made: HaproxyGateway, running: dict[str, rig.Triton], active: str) -> None:
    shadow = "two" if active == "one" else "one"
    spare = running[shadow].backend
    made.commit({"echo": Route((running[active].backend,), spare), "twin": Route((spare,))})


def _again(directory: Path, before: rig.Triton, models: dict[str, str]) -> rig.Triton:
    """The same server on the ports it had, as a launcher would not do: the harder case for the gateway."""
    ports = (before.http_port, before.grpc_port, before.metrics_port)

    def start() -> rig.Triton:
        return rig.launch(directory, before.name, models, ports=ports)

    return rig.ready(start(), start)


def _takeover(load: rig.Load, kill: Kill) -> float:
    """Seconds from a kill to the first answer of another server to a request that began after it."""
    later = (o.ended for o in load.outcomes if o.started > kill.began and o.server not in (None, kill.server))
    return min(later) - kill.began
