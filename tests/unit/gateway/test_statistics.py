import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.fleet import Backend, Route
from controlplane.domain.observation import combine
from controlplane.gateway.facade import answers
from controlplane.gateway.facade.answers import Ledger


def entry(count: int, last: int, sizes: dict[int, int]) -> dict[str, object]:
    return {
        "name": "m",
        "version": "1",
        "last_inference": last,
        "inference_count": count,
        "inference_stats": {"success": {"count": count, "ns": 10 * count}},
        "batch_stats": [{"batch_size": s, "compute_infer": {"count": n, "ns": n}} for s, n in sizes.items()],
    }


def test_counters_add_times_of_day_do_not_and_nothing_is_changed_in_place() -> None:
    one, other = entry(3, 70, {1: 2, 4: 1}), entry(5, 60, {4: 2, 8: 3})
    assert combine(one, other) == entry(8, 70, {1: 2, 4: 3, 8: 3})
    assert (one, other) == (entry(3, 70, {1: 2, 4: 1}), entry(5, 60, {4: 2, 8: 3}))
    assert combine({"name": "m"}, {"name": "m", "inference_count": 4})["inference_count"] == 4


def counted(count: int) -> dict[str, object]:
    return {"name": "m", "version": "1", "inference_count": count, "memory_usage": [{"byte_size": 1}]}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans()), min_size=1))
def test_a_sum_never_runs_backwards(steps: list[tuple[str, int, bool]]) -> None:
    ledger = Ledger()
    counts: dict[str, int] = {}
    served = seen = 0
    for server, more, anew in steps:
        counts[server] = more if anew else counts.get(server, 0) + more
        served += more
        ledger.note(server, counted(counts[server]))
        (total,) = ledger.total("m", "", {server})
        assert seen <= total["inference_count"] <= served
        assert len(total["memory_usage"]) == 1
        seen = total["inference_count"]


def used(inferences: int, last_ns: int) -> dict[str, object]:
    return {"name": "m", "version": "1", "inference_count": inferences, "last_inference": last_ns}


def test_the_fleets_own_inferences_are_left_out() -> None:
    ledger = Ledger()
    ledger.note("a", used(3, 70), used(3, 0))
    assert ledger.total("m", "", {"a"}) == [used(0, 0)]
    ledger.note("a", used(5, 80), used(4, 0))
    assert ledger.total("m", "", {"a"}) == [used(1, 80)]
    ledger.note("a", used(6, 90), used(5, 0))
    assert ledger.total("m", "", {"a"}) == [used(1, 80)], "the later time is the fleet's own"


def test_an_inference_of_the_fleets_that_is_not_counted_yet_takes_nothing_from_clients() -> None:
    ledger = Ledger()
    ledger.note("a", used(5, 80), used(3, 0))
    ledger.note("a", used(5, 80), used(4, 0))
    assert ledger.total("m", "", {"a"}) == [used(2, 80)]


def test_a_server_that_was_started_anew_counts_from_there() -> None:
    ledger = Ledger()
    ledger.note("a", used(9, 80), used(4, 0))
    ledger.note("a", used(3, 90), used(1, 0))
    assert ledger.total("m", "", {"a"}) == [used(7, 90)]


class Moving:
    """A fleet whose one route leads to another server by `move`; a server that was left answers twice."""

    def __init__(self) -> None:
        self.moved: set[Callable[[], None]] = set()
        self.routes = {"w": Route((Backend("old", "h", 1, 2),))}
        self.asked: list[str] = []

    def move(self) -> None:
        self.routes = {"w": Route((Backend("new", "h", 3, 4),))}
        for call in self.moved:
            call()

    async def ask(self, member: Backend, path: str) -> tuple[int, dict[str, Any] | None]:
        self.asked.append(member.server)
        return (200, {"model_stats": []}) if len(self.asked) < 3 else (0, None)


def test_a_server_is_read_from_when_requests_left_it_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pauses: list[float] = []
    real = asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", pause)

    async def read() -> None:
        fleet = Moving()
        reading = asyncio.create_task(answers.FleetAnswers(cast(Any, fleet), tmp_path).read_last())
        for at, asked in (("before", 0), ("after", 3)):
            if at == "after":
                fleet.move()
            for _ in range(50):
                await real(0)
            assert (fleet.asked, len(pauses)) == (["old"] * asked, asked)
        reading.cancel()

    asyncio.run(read())


def test_servers_that_went_long_ago_still_count() -> None:
    ledger = Ledger()
    for number in range(200):
        ledger.note(str(number), counted(1))
    ledger.note("199", counted(5))
    assert [e["inference_count"] for e in ledger.total("m", "1", {"199"})] == [204]
    assert ledger.total("m", "2", {"199"}) == ledger.total("other", "", set()) == []
