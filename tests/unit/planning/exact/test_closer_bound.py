import itertools

import numpy as np
import planning
import pytest

from controlplane.domain.plan import Rule
from controlplane.latency.protocol import Slots
from controlplane.planning.capacity.gpu_types import gpu_types
from controlplane.planning.capacity.lower_bound import lower_bound
from controlplane.planning.exact.closer_bound import Gpu, closer_bound
from controlplane.planning.exact.effects import LEVELS, PairEffects
from controlplane.planning.exact.prove import prove

EVERY = np.arange(len(planning.MODELS))


def never() -> bool:
    return False


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "count", "least"), [(Rule.P99, 200, 57), (Rule.HALF_SLO, 50, 13)])
def test_neighbours_raise_the_bound(rule: Rule, count: int, least: int) -> None:
    asked, latency = planning.published(count), "ours" if rule is Rule.P99 else "igniter"
    types = planning.types_of(planning.request(asked, latency=latency, rule=rule))
    assert round(closer_bound(asked, types, never) / 3.06) == least


def test_prove_gives_a_larger_plan_the_closer_bound() -> None:
    request = planning.request(planning.published(200))
    plan = planning.planned("joint", request.workloads)
    simple, closer = planning.totals(plan), planning.totals(prove(plan, request))
    assert simple.lower_bound_cost_per_hour == lower_bound(request.workloads, planning.types_of(request))
    assert (simple.lower_bound_gpus, closer.lower_bound_gpus) == (51, 52)
    assert closer.stopped_by == simple.stopped_by


def test_an_ended_budget_leaves_a_bound_that_holds() -> None:
    asked = planning.published(50)
    types = planning.types_of(planning.request(asked))
    simple, stopped = lower_bound(asked, types), closer_bound(asked, types, lambda: True)
    assert simple <= stopped <= closer_bound(asked, types, never)


def test_what_a_free_type_serves_costs_nothing() -> None:
    devices = {"v100": planning.v100(), "spare": planning.v100(price=0.0)}
    types = gpu_types(devices, Rule.HALF_SLO, 0.95)
    assert closer_bound(planning.published(50), types, never) == pytest.approx(0.0)


@pytest.mark.parametrize("latency", ["ours", "igniter"])
def test_no_partition_is_slowed_less_than_its_neighbours_effects_say(latency: str) -> None:
    gpu_type = planning.gpu_type(latency)
    effects = PairEffects.of(gpu_type, EVERY)
    assert effects is not None
    chance, percents, alone = np.random.default_rng(3), gpu_type.percents, gpu_type.alone
    groups = len(effects.batches)
    for width in (2, 3, 4, 5):
        cuts = np.sort(chance.integers(0, percents.size + 1, (4_000, width)), axis=1)
        share = np.diff(cuts, axis=1, prepend=0)
        share = share[(share > 0).all(axis=1)] - 1
        model, group = chance.choice(EVERY, share.shape), chance.choice(groups, share.shape)
        batch = np.choose(group, [chance.choice(b, share.shape) for b in effects.batches])
        option = (model * groups + group) * percents.size + share
        felt = effects.effect[option[:, :1], option[:, 1:]].sum(axis=1)
        if width > 3:
            felt = np.maximum(felt, effects.by_three[option[:, 0]])
        slowed = gpu_type.ask(Slots.of(model, batch, percents[share]))
        for own, times in zip((alone.execution, alone.cycle), slowed, strict=True):
            before = own[model[:, 0], batch[:, 0] - 1, share[:, 0]]
            assert (times[:, 0] >= before * (1.0 + felt) * (1.0 - 1e-9)).all()


@pytest.mark.slow
@pytest.mark.parametrize("latency", ["gpulet", "inss"])
def test_where_neighbours_do_not_add_up_the_simple_bound_stands(latency: str) -> None:
    assert PairEffects.of(planning.gpu_type(latency), EVERY) is None
    asked = planning.published(50)
    types = planning.types_of(planning.request(asked, latency=latency))
    assert closer_bound(asked, types, never) == lower_bound(asked, types)


@pytest.mark.parametrize("seed", range(3))
def test_no_contents_of_up_to_three_are_overlooked(seed: int) -> None:
    chance = np.random.default_rng(seed)
    gpu_type = planning.gpu_type("igniter")
    known = PairEffects.of(gpu_type, EVERY[:2])
    assert known is not None
    gpu = Gpu.of(known)
    # Only few options are worth anything, and less the more they are slowed.
    some = chance.choice(known.model.size, 12, replace=False)
    worth = np.zeros((known.model.size, LEVELS.size))
    worth[some] = chance.uniform(0.0, 1.0, 12)[:, None] * (1.0 - LEVELS)
    found, most = gpu.best(worth, 0.0)

    def earned(parts: tuple[int, ...]) -> float:
        total = 0.0
        for n, option in enumerate(parts):
            felt = sum(known.effect[option, other] for m, other in enumerate(parts) if m != n)
            total += worth[option, np.searchsorted(LEVELS, felt, side="right") - 1]
        return total

    sets = [s for n in (1, 2, 3) for s in itertools.combinations_with_replacement(some.tolist(), n)]
    best = max(earned(s) for s in sets if known.percent[list(s)].sum() <= 100.0)
    assert most >= best - 1e-9
    assert max(c.earned for c in found) == pytest.approx(most)
    assert max((c.earned for c in found if len(c.parts) < 4), default=0.0) <= best + 1e-9
