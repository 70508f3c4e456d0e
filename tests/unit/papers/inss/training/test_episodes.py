import numpy as np
import pytest
from inss_instances import around

from controlplane.papers.inss.policy import worth
from controlplane.papers.inss.problem import goodput
from controlplane.papers.inss.training.episodes import Plays, Reward


def run(plays: Plays, seed: int) -> list[np.ndarray]:
    """Rewards of an episode of random allowed actions."""
    rng = np.random.default_rng(seed)
    plays.reset(np.random.default_rng(seed))
    rewards = []
    while not plays.episodes.done:
        noise = np.where(plays.seen.valid, rng.random(plays.seen.valid.shape), -1.0)
        rewards.append(plays.step(noise.argmax(axis=1)))
    return rewards


@pytest.mark.parametrize("kind", [Reward.GOODPUT, Reward.TERMINAL])
def test_rewards_add_up_to_what_the_plan_is_worth(kind: Reward) -> None:
    plays = Plays(around(6, 4, 8), kind)
    rewards = run(plays, 5)
    plan = plays.episodes
    total = 6 * worth(plays.problem, plan.gpu, plan.units, plays.before)
    assert np.allclose(np.sum(rewards, axis=0), total)
    assert kind is Reward.GOODPUT or not np.any(rewards[:-1])


def test_the_papers_reward_is_eq_3() -> None:
    plays = Plays(around(6, 4, 8), Reward.PAPER)
    rewards = run(plays, 6)
    outcome = goodput(plays.problem, plays.episodes.gpu, plays.episodes.units)
    for e in range(8):
        by_hand = sum(
            outcome.capacity_rps[e, i] / plays.problem.peak_rps[e, i] - 100.0 * outcome.violated[e, i]
            for i in range(6)
        )
        assert rewards[-1][e] == pytest.approx(by_hand)


def test_a_masked_action_is_refused() -> None:
    plays = Plays(around(6, 2, 4))
    plays.reset(np.random.default_rng(1))
    masked = np.argmin(plays.seen.valid, axis=1)
    with pytest.raises(ValueError, match="masked"):
        plays.step(masked)


def test_moving_costs_what_the_search_says_it_costs() -> None:
    plays = Plays(around(6, 4, 16))
    run(plays, 9)
    before, plan = plays.before, plays.episodes
    known = before.gpu >= 0
    assert known.any()
    assert not known.all()
    moved = (known & ((plan.gpu != before.gpu) | (plan.units != before.units))).sum(axis=1)
    free = worth(plays.problem, plan.gpu, plan.units, None)
    assert np.allclose(free - worth(plays.problem, plan.gpu, plan.units, before), before.cost * moved)
