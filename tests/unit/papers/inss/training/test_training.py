import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from inss_instances import around, base

from controlplane.domain.errors import InputError
from controlplane.papers.inss.policy import Episodes, Observation, scores
from controlplane.papers.inss.training.agent import (
    Agent,
    Replay,
    SacSettings,
    ScoreNetwork,
    TensorObservation,
    Transitions,
    exported,
    log_policy,
)
from controlplane.papers.inss.training.training import Trained, TrainSettings, sizes_up_to, train
from controlplane.runtime import SystemClock

pytestmark = pytest.mark.slow

TINY = TrainSettings(
    seed=3,
    rounds=6,
    shown=2,
    shown_search=1,
    lanes=4,
    updates=3,
    batch=16,
    replay=64,
    check_every=2,
    check_problems=8,
    sac=SacSettings(width=8),
)
SIZES = [(3, 2), (4, 3)]


class Silent:
    """Progress nobody watches; raises after so many rounds."""

    def __init__(self, until: int | None = None) -> None:
        self.until = until

    def advance(self, what: str, done: int, total: int, seconds_left: float | None) -> None:
        if done == self.until:
            raise KeyboardInterrupt


def run(settings: TrainSettings, checkpoint: Path | None = None, until: int | None = None) -> Trained:
    return train(base(), SIZES, settings, checkpoint=checkpoint, progress=Silent(until), clock=SystemClock())


@pytest.mark.slow
def test_a_short_training_learns_from_finite_losses() -> None:
    trained = run(TINY)
    assert [c.round for c in trained.curve] == [2, 4, 6]
    assert trained.stopped_by == "rounds"
    for check in trained.curve:
        assert all(math.isfinite(value) for value in asdict(check).values())
        assert 0.0 <= check.goodput_percent <= 100.0
        assert check.temperature > 0.0
    assert trained.curve[-1].entropy > 0.0


def test_an_interrupted_training_ends_like_one_that_was_not(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run.checkpoint"
    whole = run(TINY)
    with pytest.raises(KeyboardInterrupt):
        run(TINY, checkpoint, until=5)
    resumed = run(TINY, checkpoint)
    assert resumed.curve == whole.curve
    one, other = asdict(resumed.weights), asdict(whole.weights)
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run.checkpoint"
    run(TINY, checkpoint)
    with pytest.raises(InputError, match="another version, spec, seed"):
        run(replace(TINY, seed=4), checkpoint)
    state = torch.load(checkpoint, weights_only=True)
    unnumbered = state["of"][state["of"].index("TrainSettings") :]
    torch.save(state | {"of": unnumbered, "agent": {}}, checkpoint)
    with pytest.raises(InputError, match="another version, spec, seed"):
        run(TINY, checkpoint)
    checkpoint.write_bytes(b"torn")
    with pytest.raises(InputError, match="delete it"):
        run(TINY, checkpoint)


def test_patience_stops_early() -> None:
    # Updates of size nothing: the policy never gets better.
    still = replace(TINY, rounds=40, patience=2, sac=replace(TINY.sac, learning_rate=0.0))
    trained = run(still)
    assert trained.stopped_by == "no improvement"
    assert len(trained.curve) == 3


def test_numpy_computes_what_torch_does() -> None:
    torch.manual_seed(1)
    network = ScoreNetwork(16)
    problem, before = around(6, 4, 16)(np.random.default_rng(1))
    seen = Episodes(problem, before).observe()
    ours = scores(exported(network), seen)
    with torch.no_grad():
        theirs = network(TensorObservation.of(seen)).numpy()
    assert np.abs(ours - theirs)[seen.valid].max() < 1e-5
    assert np.isneginf(ours[~seen.valid]).all()


def test_masked_actions_are_never_taken() -> None:
    agent = Agent(TINY.sac)
    problem, before = around(6, 2, 64)(np.random.default_rng(4))
    seen = TensorObservation.of(Episodes(problem, before).observe())
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        action = agent.act(seen, generator)
        assert seen.valid[torch.arange(64), action].all()
    policy = log_policy(agent.actor(seen), seen.valid).exp()
    assert policy[~seen.valid].max() == 0.0


def test_a_critic_finds_the_best_of_known_rewards() -> None:
    """One step, reward 1 for rejecting and 0 else: the actor comes to reject."""
    torch.manual_seed(1)
    agent = Agent(SacSettings(width=16, learning_rate=3e-3, entropy_ratio=(0.1, 0.1)))
    problem, before = around(4, 3, 64)(np.random.default_rng(5))
    seen = TensorObservation.of(Episodes(problem, before).observe())
    generator = torch.Generator().manual_seed(2)
    for _ in range(80):
        action = agent.act(seen, generator)
        reward = (action == 0).float()
        agent.update(Transitions(seen, action, reward, seen, torch.ones(64)), 1.0)
    chosen = log_policy(agent.actor(seen), seen.valid).argmax(dim=1)
    assert (chosen == 0).float().mean() > 0.95


def test_sizes_go_from_half_to_all() -> None:
    assert sizes_up_to(3, 2) == [(2, 1), (2, 2), (3, 1), (3, 2)]
    assert sizes_up_to(1, 1) == [(1, 1)]


def episode(models: int, gpus: int, seed: int) -> tuple[list[Observation], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    problem, before = around(models, gpus, 4)(rng)
    plans = Episodes(problem, before)
    seen, actions = [], []
    while not plans.done:
        seen.append(plans.observe())
        actions.append(np.where(seen[-1].valid, rng.random(seen[-1].valid.shape), -1.0).argmax(axis=1))
        plans.place(actions[-1])
    return seen, actions


def test_the_next_state_is_the_episodes_own_even_where_the_ring_wraps() -> None:
    replay = Replay(capacity=40, lanes=4, actions=69)
    for seed in range(7):
        seen, actions = episode(3, 3, seed)
        marks = [np.full(4, 100.0 * seed + t) for t in range(3)]
        replay.push(seen, actions, marks)
    steps = replay.sample(np.random.default_rng(0), 500)
    marked = {}
    for row in range(500):
        marked.setdefault(float(steps.reward[row]), []).append(row)
    assert replay.size == 40
    assert 600.0 in marked
    for mark, rows in marked.items():
        seed, t = divmod(int(mark), 100)
        seen, _ = episode(3, 3, seed)
        after = seen[min(t + 1, 2)].actions
        for row in rows:
            assert bool(steps.last[row]) == (t == 2)
            assert any(
                np.array_equal(steps.next_state.actions[row, : one.shape[0]].numpy(), one) for one in after
            )


def test_added_actions_of_fewer_gpus_are_masked_whatever_lay_there() -> None:
    replay = Replay(12, 4, 69)
    replay.push(*episode(3, 4, 1), [np.zeros(4)] * 3)
    seen, actions = episode(3, 2, 2)
    replay.push(seen, actions, [np.zeros(4)] * 3)
    steps = replay.sample(np.random.default_rng(0), 50)
    assert not steps.state.valid[:, 1 + 2 * 17 :].any()
    assert steps.state.valid[torch.arange(50), steps.action].all()


def test_a_tensor_lies_where_a_rerun_has_it_whatever_the_arrays_place() -> None:
    # A BLAS may add up in another order at another alignment; numpy's arrays have any multiple of 16.
    seen, _ = episode(3, 3, 1)
    for offset in (4, 8, 12):  # of four bytes each

        def moved(a: np.ndarray, offset: int = offset) -> np.ndarray:
            room = np.empty(a.nbytes + 128, dtype=np.uint8)
            start = -room.ctypes.data % 64 + 4 * offset
            there = room[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
            there[...] = a
            return there

        told = TensorObservation.of(Observation(*map(moved, seen[0])))
        assert [t.data_ptr() % 64 for t in told] == [0] * 2
        assert all(np.array_equal(t.numpy(), a) for t, a in zip(told, seen[0], strict=True))
