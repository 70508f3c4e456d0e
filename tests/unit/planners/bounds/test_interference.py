from __future__ import annotations

import itertools

import numpy as np
import planning
import pytest

from controlplane.latency.protocol import Slots
from controlplane.planners.bounds.interference import LEVELS, MOST_KNOTS, MutualRates, PairEffects
from controlplane.planners.bounds.interference_kernel import NONE, best_contents, worth_of
from controlplane.planners.serving.gpu_types import GpuType

pytestmark = pytest.mark.unit

EVERY = range(len(planning.MODELS))


def effects_of(gpu_type: GpuType) -> PairEffects:
    effects = PairEffects.of(gpu_type, EVERY)
    assert effects is not None
    return effects


@pytest.mark.parametrize("knots", [MOST_KNOTS, MOST_KNOTS // 2])
@pytest.mark.parametrize("latency", ["ours", "igniter"])
def test_no_partition_is_slowed_less_than_by_the_sum_of_its_neighbours_effects(
    latency: str, knots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A coarse lattice, as of a grid with more shares, errs by more: that is seen and counted.
    monkeypatch.setattr("controlplane.planners.bounds.interference.MOST_KNOTS", knots)
    gpu_type = planning.gpu_type(latency)
    effects, percents, alone = effects_of(gpu_type), gpu_type.percents, gpu_type.alone
    starts = np.array([batches[0] for batches in effects.batches])
    batches = np.concatenate(effects.batches)
    chance = np.random.default_rng(3)
    for width in (2, 3, 5):
        cuts = np.sort(chance.integers(0, percents.size + 1, (20_000, width)), axis=1)
        share = np.diff(cuts, axis=1, prepend=0)
        share = share[(share > 0).all(axis=1)] - 1
        model, batch = chance.choice(EVERY, share.shape), chance.choice(batches, share.shape)
        slots = Slots.of(model, batch.astype(np.float64), percents[share])
        group = np.searchsorted(starts, batch, side="right") - 1
        effect = sum(
            effects.effect[model[:, 0], group[:, 0], share[:, 0], model[:, j], group[:, j], share[:, j]]
            for j in range(1, width)
        )
        for slowed, own in zip(gpu_type.ask(slots), (alone.execution, alone.cycle), strict=True):
            assert (slowed[:, 0] >= own[model[:, 0], batch[:, 0] - 1, share[:, 0]] * (1.0 + effect)).all()


def test_nothing_is_said_where_a_model_serves_fewer_batches_than_the_others() -> None:
    gpu_type = planning.gpu_type("ours")
    effects_of(gpu_type)
    gpu_type.alone.execution[0, 4:] = np.inf
    assert PairEffects.of(gpu_type, EVERY) is None


def test_single_requests_are_slowed_by_what_slows_full_batches() -> None:
    gpu_type = planning.gpu_type("ours")
    effects, percents, alone = effects_of(gpu_type), gpu_type.percents, gpu_type.alone
    starts = np.array([batches[0] for batches in effects.batches])
    batches = np.concatenate(effects.batches)
    slowed = [[effects.slowed(gpu_type, m, g, np.inf).first for m in EVERY] for g in range(starts.size)]
    chance = np.random.default_rng(5)
    cuts = np.sort(chance.integers(0, percents.size + 1, (5_000, 3)), axis=1)
    share = np.diff(cuts, axis=1, prepend=0)
    share = share[(share > 0).all(axis=1)] - 1
    model, batch = chance.choice(EVERY, share.shape), chance.choice(batches, share.shape)
    group = np.searchsorted(starts, batch, side="right") - 1
    m, g, s = model[:, 0], group[:, 0], share[:, 0]
    felt = sum(effects.effect[m, g, s, model[:, j], group[:, j], share[:, j]] for j in (1, 2))
    level = np.searchsorted(LEVELS, 1.0 + felt, side="right") - 1
    first = np.array(slowed)[g, m, level, s]
    lone = batch.astype(np.float64)
    lone[:, 0] = 1.0
    execution, _ = gpu_type.ask(Slots.of(model, lone, percents[share]))
    assert (first <= execution[:, 0] * (1.0 + 1e-9)).all()
    # More than by the least harmful alone, for many that are slowed at all.
    least = alone.execution[m, 0, s] * (1.0 + effects.least[m, 0, s])
    assert (first > least).mean() > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("latency", ["gpulet", "inss"])
def test_where_neighbours_do_not_add_up_nothing_is_said(latency: str) -> None:
    gpu_type = planning.gpu_type(latency)
    assert PairEffects.of(gpu_type, EVERY) is None
    assert MutualRates.of(gpu_type, dict.fromkeys(EVERY, 50.0), [], []) is None


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
            (sale, known, who, levels), effect, effect.min(axis=(3, 4, 5)), weight, shares, 0.0
        )
        at = np.unravel_index(int(earned[size - 1].argmax()), (models, models))
        assert earned[size - 1][at] == pytest.approx(best)
        parts = found[size - 1][at]
        assert worth(tuple((m, g, s) for m, g, _, s in parts.tolist() if m != NONE)) == pytest.approx(best)
