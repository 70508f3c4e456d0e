"""One shadow for three partitions, on real Tritons under load: deaths, a slow server, its own death."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import guard_rig as rig
import pytest
from guard_rig import Guarded, Load

pytestmark = pytest.mark.long

RATES_RPS = {"a": 100.0, "b": 20.0, "c": 20.0}
SLO_MS = 1000.0
WORK_S = 0.0005
CUT_PERCENT = 4.0
LIMIT_MB = 256.0
"""Of each partition's servers; their shadow has as much for each of them."""


CONTAINERS = pytest.param("docker", marks=pytest.mark.docker)


@pytest.fixture(scope="module", params=["process", CONTAINERS])
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with rig.guarded(tmp_path_factory.mktemp("shared"), request.param) as made:
        made.apply(rig.three("shared", RATES_RPS, SLO_MS, LIMIT_MB))
        made.await_guarded(3)
        yield made


@pytest.fixture
def loads(fleet: Guarded) -> Iterator[dict[str, Load]]:
    """Requests of all three; those of `b` and `c` must all be answered, by the servers of before."""
    before = {name: fleet.active(name) for name in "bc"}
    with ExitStack() as stack:
        made = {
            name: stack.enter_context(Load(fleet.grpc, name, rate_rps, WORK_S))
            for name, rate_rps in RATES_RPS.items()
        }
        for load in made.values():
            load.await_answers(20)
        yield made
        for load in made.values():
            load.await_answers(20, since_s=time.time())
    assert made["b"].failed() == made["c"].failed() == []
    assert {name: fleet.active(name) for name in "bc"} == before


def shared(fleet: Guarded) -> str:
    (server,) = [s.name for s in fleet.running_servers() if s.spec.labels.partition == rig.SHARED_ID]
    return server


def own_percent(fleet: Guarded) -> float:
    """The share of the server of `a` alone that answers for it."""
    (active,) = [s for s in fleet.running_servers() if s.name == fleet.active("a")]
    assert active.spec.labels.partition == "a"
    return active.spec.percent


def test_it_serves_the_requests_of_a_dead_server_until_the_next_one_is_ready(
    fleet: Guarded, loads: dict[str, Load]
) -> None:
    standby = shared(fleet)
    (dead,) = [s for s in fleet.running_servers() if s.name == fleet.active("a")]
    hit_s, dead_s = rig.kill(fleet.tree(dead.name))
    lent = fleet.await_event("redirect", since_s=hit_s)
    back = fleet.await_event("redirect", since_s=hit_s, says="share given back")
    assert (lent.subject, back.subject) == ("a", "a")
    assert standby in lent.reason
    loads["a"].await_answers(100, since_s=back.at_s)
    assert loads["a"].unexplained(hit_s, dead_s) == []
    fleet.await_guarded(3)
    assert own_percent(fleet) == rig.SHARERS["a"]
    assert shared(fleet) == standby


@pytest.mark.parametrize("fleet", [CONTAINERS], indirect=True, scope="module")
def test_a_server_beyond_its_memory_limit_dies_alone_and_is_named_with_it(
    fleet: Guarded, loads: dict[str, Load]
) -> None:
    hit_s = time.time()
    with Load(fleet.grpc, "a", rate_rps=0.2, work_s=-2.0 * LIMIT_MB):
        lent = fleet.await_event("redirect", since_s=hit_s)
        said = fleet.await_event("notice", since_s=hit_s, says=f"memory limit of {LIMIT_MB:g} MB")
    assert (lent.subject, said.subject) == ("a", "a")
    fleet.await_guarded(3)
    assert [r for r in loads["a"].failed() if r.started_s > lent.at_s] == []


def test_it_serves_the_requests_of_a_slow_server_until_one_of_its_share_is_ready(
    fleet: Guarded, loads: dict[str, Load]
) -> None:
    rig.needs_quota(fleet)
    standby, percent, cut_s = shared(fleet), own_percent(fleet), time.time()
    fleet.cut_quota(percent, CUT_PERCENT)
    moved = fleet.await_event("redirect", since_s=cut_s)
    assert "slow server" in moved.reason
    fleet.await_event("redirect", since_s=cut_s, says="share given back")
    fleet.await_guarded(3)
    assert loads["a"].failed() == []
    assert own_percent(fleet) == rig.SHARED_PERCENT
    assert shared(fleet) == standby


def test_where_it_dies_the_next_one_stands_by_for_all(fleet: Guarded, loads: dict[str, Load]) -> None:
    before = shared(fleet)
    hit_s, _ = rig.kill(fleet.tree(before))
    launched = fleet.await_event("launch", since_s=hit_s)
    assert launched.subject == rig.SHARED_ID
    fleet.await_guarded(3)
    assert shared(fleet) != before
    assert loads["a"].failed() == []
