from __future__ import annotations

import numpy as np
import pytest
import torch
from inss_policy import around

from controlplane.papers.inss.features import Episodes, Observation
from controlplane.papers.inss.training.agent import TensorObservation
from controlplane.papers.inss.training.replay import Replay


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


def test_what_was_kept_comes_back() -> None:
    replay = Replay(40, 4, 69)
    replay.push(*episode(3, 3, 1), [np.zeros(4)] * 3)
    copy = Replay(40, 4, 69)
    copy.load_state_dict(replay.state_dict())
    first = replay.sample(np.random.default_rng(2), 9)
    second = copy.sample(np.random.default_rng(2), 9)
    assert all(torch.equal(a, b) for a, b in zip(first.state, second.state, strict=True))
    assert torch.equal(first.action, second.action)


def test_an_episode_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        Replay(8, 4, 69).push(*episode(3, 3, 1), [np.zeros(4)] * 3)


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
