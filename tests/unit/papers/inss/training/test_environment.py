from __future__ import annotations

import numpy as np
import pytest
from inss_policy import around

from controlplane.papers.inss.policy import worth
from controlplane.papers.inss.problem import goodput
from controlplane.papers.inss.training.environment import PlacementVectorEnv, Reward

pytestmark = pytest.mark.unit


def run(env: PlacementVectorEnv, seed: int) -> list[np.ndarray]:
    """Rewards of an episode of random allowed actions."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    rewards, ended = [], False
    while not ended:
        noise = np.where(env.seen.valid, rng.random(env.seen.valid.shape), -1.0)
        _, won, last, _, _ = env.step(noise.argmax(axis=1))
        rewards.append(won)
        ended = bool(last.all())
    return rewards


def test_it_is_a_gymnasium_environment() -> None:
    env = PlacementVectorEnv(around(3, 2, 1))
    seen, _ = env.reset(seed=3)
    assert env.observation_space.contains(seen)
    again, _ = env.reset(seed=3)
    assert all(np.array_equal(seen[name], again[name]) for name in seen)
    for _ in range(3):
        seen, _, ended, cut, _ = env.step(seen["valid"].argmax(axis=1))
        assert env.observation_space.contains(seen)
    assert ended.all()
    assert not cut.any()


@pytest.mark.parametrize("kind", [Reward.GOODPUT, Reward.TERMINAL])
def test_rewards_add_up_to_what_the_plan_is_worth(kind: Reward) -> None:
    env = PlacementVectorEnv(around(6, 4, 8), kind)
    rewards = run(env, 5)
    plan = env.episodes
    total = 6 * worth(env.problem, plan.gpu, plan.units, env.before)
    assert np.allclose(np.sum(rewards, axis=0), total)
    assert kind is Reward.GOODPUT or not np.any(rewards[:-1])


def test_the_papers_reward_is_eq_3() -> None:
    env = PlacementVectorEnv(around(6, 4, 8), Reward.PAPER)
    rewards = run(env, 6)
    outcome = goodput(env.problem, env.episodes.gpu, env.episodes.units)
    for e in range(8):
        by_hand = sum(
            outcome.capacity_rps[e, i] / env.problem.peak_rps[e, i] - 100.0 * outcome.violated[e, i]
            for i in range(6)
        )
        assert rewards[-1][e] == pytest.approx(by_hand)


def test_a_masked_action_is_refused() -> None:
    env = PlacementVectorEnv(around(6, 2, 4))
    env.reset(seed=1)
    masked = np.argmin(env.seen.valid, axis=1)
    with pytest.raises(ValueError, match="masked"):
        env.step(masked)


def test_moving_costs_what_the_search_says_it_costs() -> None:
    env = PlacementVectorEnv(around(6, 4, 16))
    run(env, 9)
    before, plan = env.before, env.episodes
    known = before.gpu >= 0
    assert known.any()
    assert not known.all()
    moved = (known & ((plan.gpu != before.gpu) | (plan.units != before.units))).sum(axis=1)
    free = worth(env.problem, plan.gpu, plan.units, None)
    assert np.allclose(free - worth(env.problem, plan.gpu, plan.units, before), before.cost * moved)
