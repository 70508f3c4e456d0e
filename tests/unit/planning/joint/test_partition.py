"""Families cut into groups that fill what serves them."""

import numpy as np

from controlplane.planning.joint.offers import PART, WHOLE, Offers
from controlplane.planning.joint.partition import cheapest_partition


def whole_gpus(most: int, carried: np.ndarray) -> Offers:
    """One to `most` GPUs at 1 each; each carries `carried[i]` where place i is the strictest."""
    servers = np.arange(1, most + 1)
    nothing = np.zeros_like(servers)
    return Offers(
        servers.astype(float), carried[:, None] * servers, servers, nothing, nothing, np.full(1, np.inf)
    )


def test_everyone_is_in_one_group_that_its_servers_carry() -> None:
    random = np.random.default_rng(1)
    for together in (1, 3, 16):
        rates = random.uniform(5.0, 40.0, 60)
        offers = whole_gpus(8, np.linspace(60.0, 100.0, 60))
        cut = cheapest_partition(rates, offers, together)
        assert sorted(i for f in cut for i in f.members) == list(range(60))
        for f in cut:
            assert f.offer is not None
            assert list(f.members) == sorted(f.members)
            assert len(f.members) <= together
            carried = offers.rate[f.members[0], f.offer.servers - 1]
            assert rates[list(f.members)].sum() <= carried + 1e-6


def test_groups_need_not_be_runs() -> None:
    # In order of their SLO no two fit one GPU together with their neighbour; 60 and 40 do.
    rates = np.array([60.0, 60.0, 60.0, 40.0, 40.0, 40.0])
    cut = cheapest_partition(rates, whole_gpus(1, np.full(6, 100.0)), 16)
    assert len(cut) == 3
    assert all(rates[list(f.members)].sum() == 100.0 for f in cut)


def test_what_stays_empty_gathers_in_the_last_group() -> None:
    rates = np.array([30.0] * 7)
    offers = whole_gpus(2, np.full(7, 100.0))
    half = Offers(
        np.append(0.5, offers.cost),
        np.column_stack([np.full(7, 45.0), offers.rate]),
        np.append(1, offers.servers),
        np.append(PART, offers.stand),
        np.append(0, offers.source),
        offers.stock,
    )
    cut = cheapest_partition(rates, half, 16)
    assert sum(f.offer.cost for f in cut if f.offer is not None) == 2.5


def test_no_more_servers_stand_in_one_place_than_there_are() -> None:
    rates = np.array([20.0] * 16)
    offers = whole_gpus(3, np.full(16, 100.0))
    cheap = Offers(
        np.append(offers.cost, [0.3, 0.6]),
        np.column_stack([offers.rate, np.full(16, 40.0), np.full(16, 80.0)]),
        np.append(offers.servers, [1, 2]),
        np.append(np.full(3, WHOLE), [1, 1]),
        np.zeros(5, dtype=int),
        np.array([np.inf, 3.0]),
    )
    cut = cheapest_partition(rates, cheap, 16)
    assert sum(f.offer.servers for f in cut if f.offer is not None and f.offer.stand == 1) <= 3
    assert sorted(i for f in cut for i in f.members) == list(range(16))


def test_what_nothing_carries_is_by_itself() -> None:
    cut = cheapest_partition(np.array([10.0, 500.0, 10.0]), whole_gpus(2, np.full(3, 100.0)), 16)
    alone = [f for f in cut if f.offer is None]
    assert [f.members for f in alone] == [(1,)]
    assert sorted(i for f in cut if f.offer is not None for i in f.members) == [0, 2]
