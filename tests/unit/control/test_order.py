from dataclasses import replace

import pytest
from build import plan
from hypothesis import given
from hypothesis import strategies as st

from controlplane.control.order import order_of, promised, requests_inside, with_errors
from controlplane.domain.plan import Partition, Placement, Prediction, ServedModel
from controlplane.domain.serving import (
    LARGEST_DEFICIT_MS,
    LONGEST_MS,
    MOST_RANKS,
    OVERTAKES_MS,
    PROMISE_WINDOW_S,
    ranks_of,
)


def placement(name: str, ms: float | None, rate: float = 10.0, slo_ms: float = 100.0) -> Placement:
    return Placement(name, name, name, rate, slo_ms, predicted=Prediction(execution_ms=ms))


def partition(*placed: Placement, batch: int = 1, name: str = "P1") -> Partition:
    return Partition(name, 50.0, tuple(ServedModel(p.model, batch) for p in placed), placed)


@given(st.lists(st.floats(0.1, 1000.0), min_size=2, max_size=6), st.integers(0, LONGEST_MS))
def test_a_longer_request_never_goes_before_a_shorter_one_that_came_with_it(
    times_ms: list[float], overtake_ms: int
) -> None:
    placed = [placement(f"w{n}", ms) for n, ms in enumerate(times_ms)]
    order = order_of(plan(partition(*placed)), overtake_ms)
    by_time = [
        order[p.endpoint].after_ms for p in sorted(placed, key=lambda p: p.predicted.execution_ms or 0)
    ]
    assert by_time == sorted(by_time)
    assert by_time[0] == 0
    assert by_time[-1] <= LONGEST_MS


def test_requests_of_similar_time_go_first_come_first_served() -> None:
    placed = (placement("a", 2.0), placement("b", 3.9), placement("c", 30.0), placement("d", 45.0))
    order = order_of(plan(partition(*placed)), 700)
    assert [order[name].after_ms for name in "abcd"] == [0, 0, 700, 700]


def test_a_model_that_is_slower_than_planned_waits_for_those_that_are_shorter_by_the_learned_times() -> None:
    made = plan(partition(placement("a", 2.0), placement("b", 3.0)))
    kind = made.gpus[0].type
    learned = with_errors(made, {("b", kind): 2.0, ("a", "another type"): 9.0})
    order = order_of(learned, 700)
    assert [order[name].after_ms for name in "ab"] == [0, 700]
    assert [order_of(made, 700)[name].after_ms for name in "ab"] == [0, 0]


@pytest.mark.parametrize(
    ("overtake_ms", "threshold_ms"), [(0, 0), (700, 700), (LONGEST_MS, LARGEST_DEFICIT_MS)]
)
def test_a_request_counts_for_its_client_by_its_part_of_a_batch_up_to_the_threshold(
    overtake_ms: int, threshold_ms: int
) -> None:
    made = plan(partition(placement("a", 2.0), placement("b", 30.0), batch=4))
    order = order_of(made, overtake_ms)
    assert [order[name].served_ms for name in "ab"] == [1, 8]
    assert [order[name].deficit_ms for name in "ab"] == [threshold_ms, threshold_ms]
    assert {one.deficit_ms for one in order_of(plan(ranked(0, 1)), overtake_ms).values()} == {0}


def ranked(*ranks: int) -> Partition:
    """A partition whose plan relies on the order of its models, the later ones shorter."""
    placed = [placement(f"w{n}", 30.0 - n) for n in range(len(ranks))]
    models = [ServedModel(p.model, 1, rank=rank) for p, rank in zip(placed, ranks, strict=True)]
    return Partition("P1", 50.0, tuple(models), tuple(placed))


@pytest.mark.parametrize("overtake_ms", [None, 0, 700])
def test_planned_ranks_go_strictly_one_before_the_other_whatever_the_fleets_option(
    overtake_ms: int | None,
) -> None:
    order = order_of(plan(ranked(2, 0, 1)), overtake_ms)
    assert [order[f"w{n}"].after_ms for n in range(3)] == [2 * OVERTAKES_MS, 0, OVERTAKES_MS]
    assert {one.inside for one in order.values()} == {1}


def test_only_planned_orders_stand_without_the_fleets_option() -> None:
    other = partition(placement("a", 2.0), placement("b", 30.0), name="P2")
    assert set(order_of(plan(ranked(0, 1), other), None)) == {"w0", "w1"}


def test_a_planned_order_puts_fewer_back_for_chance() -> None:
    by_chance = order_of(plan(partition(placement("w0", 2.0), placement("w1", 30.0))), 0)["w0"]
    assert order_of(plan(ranked(0, 1)), None)["w0"].promised > by_chance.promised


@given(st.dictionaries(st.text(min_size=1), st.floats(0.1, 1000.0), min_size=1))
def test_ranks_rise_with_the_time_from_0(times_ms: dict[str, float]) -> None:
    ranks = ranks_of(times_ms)
    by_time = [ranks[name] for name in sorted(times_ms, key=lambda name: times_ms[name])]
    assert by_time == sorted(by_time)
    assert set(by_time) == set(range(max(by_time) + 1))


def test_the_last_planned_rank_has_an_offset_that_haproxy_takes() -> None:
    assert (MOST_RANKS - 1) * OVERTAKES_MS <= LONGEST_MS < MOST_RANKS * OVERTAKES_MS


TWO = partition(placement("a", 2.0), placement("b", 30.0))


@pytest.mark.parametrize(
    ("partitions", "ordered"),
    [
        ((TWO, partition(placement("c", 2.0), name="P2")), {"a", "b"}),  # one model takes no turns
        ((TWO, replace(TWO, id="P2")), set()),  # a pool's servers have queues of their own
        ((partition(placement("a", 2.0), placement("b", None)),), set()),  # of unknown time
    ],
)
def test_only_models_that_take_turns_on_one_server_and_whose_times_are_known_have_an_order(
    partitions: tuple[Partition, ...], ordered: set[str]
) -> None:
    assert set(order_of(plan(*partitions), 10)) == ordered


def test_a_server_holds_a_full_batch_and_one_that_gathers() -> None:
    assert requests_inside(partition(placement("a", 2.0), placement("b", 30.0), batch=8)) == 16
    assert requests_inside(TWO) == 2
    assert requests_inside(ranked(0, 1)) == 1
    fours = tuple(replace(placement(n, 2.0), client_batch=4) for n in "ab")
    assert requests_inside(partition(*fours, batch=8)) == 4, "clients' batches fill it with fewer requests"


def test_a_partition_is_overloaded_where_half_of_the_strictest_slo_is_waiting_work() -> None:
    placed = (placement("a", 2.0, rate=100.0, slo_ms=200.0), placement("b", 10.0, rate=100.0, slo_ms=80.0))
    order = order_of(plan(partition(*placed)), 10)
    assert {one.overloaded_at for one in order.values()} == {6}  # of 6 ms each, 40 ms in all


@given(st.floats(0.1, 2000.0))
def test_a_promise_allows_the_planned_rate_and_hardly_more(rate: float) -> None:
    expected = PROMISE_WINDOW_S * rate
    assert expected <= promised(rate) <= expected + 2.0 * expected**0.5 + 1.0
