"""kill -9 of the active Triton under load: at most the calls in flight on it are lost."""

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

    def held(self, outcome: rig.Outcome, calm_s: float) -> bool:
        """Whether it may have been on the server when that died, or was sent before anybody had noticed.

        A host that takes `calm_s` for a request may take as long to pass a closed connection on.
        """
        return outcome.started <= self.ended + rig.NOTICED_S + calm_s and self.began <= outcome.ended


@pytest.mark.parametrize(
    ("times", "rate_rps"),
    [(2, 150), pytest.param(20, 400, marks=[pytest.mark.soak, pytest.mark.timeout(400)])],
)
def test_a_killed_server_loses_only_what_it_held(tmp_path: Path, times: int, rate_rps: int) -> None:
    models = {"echo": "echo"}
    with rig.tritons(tmp_path, one=models, two=models) as running, rig.a_gateway(tmp_path) as (made, ports):
        load = rig.Load(ports)
        kills: list[Kill] = []

        def answers(server: str, since: float) -> None:
            until(lambda: len(load.answered(server, since)) >= ANSWERS)

        _route(made, running, "one")
        with rig.under_load(partial(load.unary, rate_rps)):
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
        failed = load.failed()
        calm_s = max(o.ended - o.started for o in load.outcomes if o.ended < kills[0].began)
        held = [sum(kill.held(o, calm_s) for o in load.outcomes) for kill in kills]
        lost = [sum(kill.held(o, calm_s) for o in failed) for kill in kills]
        print(
            f"\n{times} kills under {rate_rps} req/s: {len(load.outcomes)} requests, in flight at the kills "
            f"{held}, lost {lost}; first answer of the shadow after "
            f"{1000 * median(_takeover(load, kill) for kill in kills):.1f} ms (median)"
        )
        assert [o for o in failed if not any(kill.held(o, calm_s) for kill in kills)] == []
        assert [o for o in failed if rig.NOBODY_READY in str(o.error)] == [], "the other one lives"


def _route(made: HaproxyGateway, running: dict[str, rig.Triton], active: str) -> None:
    shadow = "two" if active == "one" else "one"
    spare = running[shadow].backend
    made.commit({"echo": Route((running[active].backend,), spare)})


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
