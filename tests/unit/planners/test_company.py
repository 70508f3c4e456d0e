from __future__ import annotations

import itertools

import numpy as np
import planning
import pytest

from controlplane.domain.plan import Rule
from controlplane.latency.protocol import Slots
from controlplane.planners.board import ask
from controlplane.planners.capacity import batches_told_apart
from controlplane.planners.company import LEVELS, MOST_KNOTS, Company, Mutual
from controlplane.planners.company_kernel import NONE, best_contents, worth_of
from controlplane.planners.menu import Alone

pytestmark = pytest.mark.unit

EVERY = range(len(planning.MODELS))


def company_of(latency: str, quantile: float | None) -> tuple[Company | None, Alone]:
    device = planning.v100(latency)
    alone = Alone.of(device, quantile)
    batch = batches_told_apart(alone, Rule.HALF_SLO if quantile is None else Rule.P99)
    return Company.of(device, alone, EVERY, batch, quantile), alone


@pytest.mark.parametrize("knots", [MOST_KNOTS, MOST_KNOTS // 2])
@pytest.mark.parametrize(("latency", "quantile"), [("ours", 0.95), ("igniter", None)])
def test_nobody_is_slowed_less_than_by_what_each_neighbour_does(
    latency: str, quantile: float | None, knots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A coarse lattice, as of a grid with more shares, errs by more: that is seen and counted.
    monkeypatch.setattr("controlplane.planners.company.MOST_KNOTS", knots)
    company, alone = company_of(latency, quantile)
    assert company is not None
    device = planning.v100(latency)
    percents = np.array(device.pool.device.grid.percents())
    starts = np.array([batches[0] for batches in company.batches])
    batches = np.concatenate(company.batches)
    chance = np.random.default_rng(3)
    for width in (2, 3, 5):
        cuts = np.sort(chance.integers(0, percents.size + 1, (20_000, width)), axis=1)
        share = np.diff(cuts, axis=1, prepend=0)
        share = share[(share > 0).all(axis=1)] - 1
        model, batch = chance.choice(EVERY, share.shape), chance.choice(batches, share.shape)
        slots = Slots.of(model, batch.astype(np.float64), percents[share])
        group = np.searchsorted(starts, batch, side="right") - 1
        effect = sum(
            company.effect[model[:, 0], group[:, 0], share[:, 0], model[:, j], group[:, j], share[:, j]]
            for j in range(1, width)
        )
        for told, own in zip(
            ask(device.latency, slots, quantile), (alone.execution, alone.cycle), strict=True
        ):
            assert (told[:, 0] >= own[model[:, 0], batch[:, 0] - 1, share[:, 0]] * (1.0 + effect)).all()


def test_nothing_is_said_where_a_model_serves_fewer_batches_than_the_others() -> None:
    device = planning.v100("ours")
    alone = Alone.of(device, 0.95)
    batch = batches_told_apart(alone, Rule.P99)
    assert Company.of(device, alone, EVERY, batch, 0.95) is not None
    alone.execution[0, 4:] = np.inf
    assert Company.of(device, alone, EVERY, batch, 0.95) is None


def test_lone_requests_are_slowed_by_who_slows_full_batches() -> None:
    company, alone = company_of("ours", 0.95)
    assert company is not None
    device = planning.v100("ours")
    percents = np.array(device.pool.device.grid.percents())
    starts = np.array([batches[0] for batches in company.batches])
    batches = np.concatenate(company.batches)
    slowed = company.slowed(alone, dict.fromkeys(EVERY, np.inf))
    chance = np.random.default_rng(5)
    cuts = np.sort(chance.integers(0, percents.size + 1, (5_000, 3)), axis=1)
    share = np.diff(cuts, axis=1, prepend=0)
    share = share[(share > 0).all(axis=1)] - 1
    model, batch = chance.choice(EVERY, share.shape), chance.choice(batches, share.shape)
    group = np.searchsorted(starts, batch, side="right") - 1
    m, g, s = model[:, 0], group[:, 0], share[:, 0]
    felt = sum(company.effect[m, g, s, model[:, j], group[:, j], share[:, j]] for j in (1, 2))
    level = np.searchsorted(LEVELS, 1.0 + felt, side="right") - 1
    first = np.array([f.first for f in slowed])[g, level, m, s]
    lone = batch.astype(np.float64)
    lone[:, 0] = 1.0
    told, _ = ask(device.latency, Slots.of(model, lone, percents[share]), 0.95)
    assert (first <= told[:, 0] * (1.0 + 1e-9)).all()
    # More than by the least harmful alone, for most who are slowed at all.
    least = alone.execution[m, 0, s] * (1.0 + company.least[m, 0, s])
    assert (first > least).mean() > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("latency", ["gpulet", "inss"])
def test_where_neighbours_do_not_add_up_nothing_is_said(latency: str) -> None:
    assert company_of(latency, None)[0] is None
    device = planning.v100(latency)
    alone = Alone.of(device, None)
    assert Mutual.of(device, alone, dict.fromkeys(EVERY, 50.0), [], [], Rule.HALF_SLO, None) is None


@pytest.mark.parametrize("seed", range(4))
def test_no_content_of_up_to_three_is_overlooked(seed: int) -> None:
    chance = np.random.default_rng(seed)
    models, groups, shares, classes = 2, 2, 6, 3
    weight, levels = np.arange(1, shares + 1), 1.0 + np.arange(8) / 20.0
    shape = (models, groups, shares)
    carried = np.sort(chance.uniform(0.0, 9.0, (groups, levels.size, shares, models * classes, 2)), axis=2)
    carried = -np.sort(-carried, axis=1)
    rate, price = chance.uniform(1.0, 5.0, models * classes), chance.uniform(0.5, 1.0, models * classes)
    edges, paid = (np.append(0.0, np.cumsum(part)) for part in (rate, rate * price))
    end = np.repeat([classes, 2 * classes], classes)
    pools, span = np.array([[1, 1], [2, 3]]), np.array([[0, classes], [classes, 2 * classes]])
    sale = carried, edges, paid, price, end, np.zeros(end.size, dtype=np.bool_), pools, span
    effect = chance.uniform(0.0, 0.12, shape * 2)
    known, who = (
        np.full((models, groups, levels.size, shares), -1.0),
        np.zeros((*shape[:2], 8, shares, 2), int),
    )

    def worth(parts: tuple[tuple[int, int, int], ...]) -> float:
        total = 0.0
        for k, (m, g, s) in enumerate(parts):
            felt = sum(effect[m, g, s, n, h, r] for j, (n, h, r) in enumerate(parts) if j != k)
            level = int(np.searchsorted(levels, 1.0 + felt, side="right")) - 1
            total += worth_of(sale, known, who, m, g, level, s)
        return total

    options = list(itertools.product(range(models), range(groups), range(shares)))
    for size in (1, 2, 3):
        fitting = [
            parts
            for parts in itertools.combinations_with_replacement(options, size)
            if sum(int(weight[s]) for _, _, s in parts) <= shares
        ]
        best = max(map(worth, fitting))
        earned, found = best_contents(
            sale, known, who, levels, effect, effect.min(axis=(3, 4, 5)), weight, shares, 0.0
        )
        at = np.unravel_index(int(earned[size - 1].argmax()), (models, models))
        assert earned[size - 1][at] == pytest.approx(best)
        parts = found[size - 1][at]
        assert worth(tuple((m, g, s) for m, g, _, s in parts.tolist() if m != NONE)) == pytest.approx(best)
