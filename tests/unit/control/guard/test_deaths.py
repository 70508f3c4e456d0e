"""Which endpoint or client is accused of crashing servers."""

import re
from collections.abc import Sequence

import pytest
from guard_bench import LIMITS, READY, Bench, bench, of

from controlplane.control.guard.effects import Accused, Refuse, Report
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.state import GuardedPartition
from controlplane.domain.observation import Answer, Health, Level, ServerSeen
from controlplane.domain.workload import ShadowPolicy


class Fleet:
    """A partition of two endpoints, or a pool; a `kill` ends an active server with these requests open."""

    def __init__(self, *endpoints: str, pool: str = "W") -> None:
        promises = tuple(Promise(one, 1000.0, 10.0) for one in endpoints or ("near", "text"))
        self.bench: Bench = bench(
            *(GuardedPartition(w, w, 30.0, promises, ShadowPolicy.HOT, w, 10.0) for w in pool)
        )
        self.wait(LIMITS.loop_s + 1.0)  # what dies now did not fail to start

    def tick(self, *answers: Answer) -> None:
        self.bench.answers += answers
        self.bench.tick(rate=0.0)
        self.bench.ready()

    def kill(
        self, *held: Accused, also_shadow: bool = False, later_s: float = 0.0, partition: str = "W"
    ) -> None:
        watch = self.bench.state.watches[partition]
        for placed in (watch.active, watch.standby if also_shadow else None):
            if placed is not None:
                self.bench.servers.pop(placed.server, None)
        died_s = self.bench.now_s
        if later_s:
            self.tick()
            self.wait(later_s)
        self.tick(
            *(
                Answer(died_s + 0.1, 9.0, True, one.endpoint, "", held=True, client=one.client, lost=True)
                for one in held
            )
        )

    def wait(self, seconds: float) -> None:
        self.bench.rest(seconds, rate=0.0)

    @property
    def refused(self) -> list[tuple[Accused, float]]:
        return [(e.accused, e.seconds) for e in of(Refuse, self.bench.effects)]


TEXT, NEAR = Accused("text"), Accused("near")
BAD, GOOD = Accused("text", "bad"), Accused("text", "good")
OPEN_AT_ALL = ((TEXT, NEAR), (TEXT,), (TEXT,))


@pytest.mark.parametrize(
    ("held", "apart_s", "later_s", "refused"),
    [
        (OPEN_AT_ALL, 4.0, 0.0, TEXT),
        (OPEN_AT_ALL, 4.0, 0.4, TEXT),  # their lines come that much later
        (OPEN_AT_ALL, LIMITS.deaths_s, 0.0, None),  # too far apart
        (((BAD, GOOD), (BAD,), (BAD, GOOD, NEAR)), 4.0, 0.0, BAD),  # and not the endpoint
        (((TEXT,), (NEAR,), (TEXT,)), 4.0, 0.0, None),
        (((TEXT, NEAR),) * 3, 4.0, 0.0, None),
        (((), (), ()), 4.0, 0.0, None),
        (((TEXT,), (), (TEXT,)), 4.0, 0.0, None),
    ],
)
def test_the_one_endpoint_or_client_with_a_request_open_at_every_one_of_three_deaths_is_refused(
    held: Sequence[tuple[Accused, ...]], apart_s: float, later_s: float, refused: Accused | None
) -> None:
    fleet = Fleet()
    for one in held:
        fleet.kill(*one, later_s=later_s)
        fleet.wait(apart_s)
    assert fleet.refused == ([] if refused is None else [(refused, LIMITS.refused_s)])
    said = [e for e in of(Report, fleet.bench.effects) if "ctl limit remove text" in e.reason]
    assert len(said) == len(fleet.refused)
    assert all(re.match(r"3 servers died within (8\.4|10\.2) s, each with", one.reason) for one in said)


def test_deaths_of_a_pools_members_count_together() -> None:
    fleet = Fleet(pool="VW")
    for partition in "VWV":
        fleet.kill(TEXT, partition=partition)
        fleet.wait(4.0)
    assert fleet.refused == [(TEXT, LIMITS.refused_s)]
    fleet.wait(LIMITS.refused_s + 1.0)
    fleet.kill(TEXT, partition="W")
    fleet.wait(1.0)
    assert fleet.refused == [(TEXT, LIMITS.refused_s), (TEXT, 2.0 * LIMITS.refused_s)]


def test_the_only_endpoint_of_a_pool_is_served_while_one_of_its_members_is() -> None:
    fleet = Fleet("text", pool="VW")
    for _ in range(2):
        fleet.kill(TEXT, also_shadow=True)
        fleet.wait(0.2)
    assert {seconds for _, seconds in fleet.refused} == {0.0}


def test_the_only_endpoint_is_refused_only_where_nothing_serves_any_more() -> None:
    outside = Fleet("text")
    for _ in range(4):
        outside.kill(TEXT)
        outside.wait(4.0)
    assert outside.refused == [(TEXT, 0.0)]
    storm = Fleet("text")
    for _ in range(2):
        storm.kill(TEXT, also_shadow=True)
        storm.wait(0.2)
    assert storm.refused[-1] == (TEXT, LIMITS.refused_s)


def test_errors_that_a_server_answered_are_no_evidence_of_its_end() -> None:
    fleet = Fleet()
    for _ in range(3):
        own = Answer(fleet.bench.now_s, 9.0, True, "near", "W.a", held=True)
        fleet.tick(own, own)
        fleet.kill(TEXT)
        fleet.wait(4.0)
    assert fleet.refused == [(TEXT, LIMITS.refused_s)]


def test_what_a_dead_process_of_a_model_held_is_refused_by_its_server_and_evidence() -> None:
    fleet = Fleet()
    for _ in range(3):
        active = fleet.bench.state.watches["W"].active.server
        fleet.bench.servers[active] = ServerSeen(Health.IMPAIRED, reason="stub died")
        fleet.tick(Answer(fleet.bench.now_s, 9.0, True, "text", active, held=True))
        fleet.wait(4.0)
    assert fleet.refused == [(TEXT, LIMITS.refused_s)]


def test_the_end_of_a_server_that_another_program_ends_accuses_none() -> None:
    fleet = Fleet()
    for _ in range(3):
        watch = fleet.bench.state.watches["W"]
        assert watch.standby is not None
        fleet.bench.servers[watch.active.server] = ServerSeen(Health.ENDING, reason="SIGTERM")
        fleet.bench.servers[watch.standby.server] = ServerSeen(Health.STARTING)
        fleet.tick()
        fleet.kill(TEXT)
        fleet.bench.servers[watch.standby.server] = READY
        fleet.wait(4.0)
    assert fleet.refused == []


def test_a_request_that_ends_a_server_and_its_shadow_gets_no_second_server_from_then_on() -> None:
    fleet = Fleet()
    fleet.kill(TEXT, also_shadow=True)
    fleet.wait(1.0)
    assert fleet.refused == [(TEXT, 0.0)]
    levels = {e.level for e in of(Report, fleet.bench.effects) if "endpoint text" in e.reason}
    assert levels == {Level.CRITICAL}


def test_after_a_refusal_one_more_death_is_enough_and_the_next_one_lasts_twice_as_long() -> None:
    fleet = Fleet()
    for _ in range(3):
        fleet.kill(TEXT)
        fleet.wait(4.0)
    for _ in range(6):
        fleet.wait(fleet.refused[-1][1] + 1.0)
        fleet.kill(TEXT, NEAR)
        fleet.wait(4.0)
    assert [seconds for _, seconds in fleet.refused] == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0]


def test_an_offence_is_forgotten() -> None:
    fleet = Fleet()
    for _ in range(3):
        fleet.kill(TEXT)
        fleet.wait(4.0)
    fleet.wait(LIMITS.refused_s + LIMITS.remembered_s)
    fleet.kill(TEXT)
    fleet.wait(4.0)
    assert len(fleet.refused) == 1


def test_after_a_refusal_the_next_server_starts_at_once() -> None:
    fleet = Fleet()
    fleet.kill(TEXT, also_shadow=True)
    fleet.wait(1.0)
    fleet.kill(TEXT, also_shadow=True)
    watch = fleet.bench.state.watches["W"]
    assert fleet.refused[-1] == (TEXT, LIMITS.refused_s)
    assert watch.standby is not None, "launched in the same tick"
    assert watch.launches.failures == 0
