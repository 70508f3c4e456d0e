"""Order means nothing to the policy: GPUs renamed, the same plan renamed."""

import inss_instances as instances
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inss_instances import tables

from controlplane.papers.inss.policy import Episodes, built_in, decide, scores
from controlplane.papers.inss.problem import Problem, fits


@pytest.mark.slow
@settings(max_examples=25)
@given(seed=st.integers(0, 2**31), models=st.integers(1, 9), gpus=st.integers(1, 6), steps=st.integers(0, 8))
def test_scores_follow_their_gpus(seed: int, models: int, gpus: int, steps: int) -> None:
    rng = np.random.default_rng(seed)
    problem = Problem.stack([instances.sample(rng, tables(), models, gpus)])
    order = rng.permutation(gpus)
    renamed = problem._replace(type_of=problem.type_of[:, order], memory_mb=problem.memory_mb[:, order])
    here, there = Episodes(problem), Episodes(renamed)
    gpus, width = here.shape
    for _ in range(min(steps, models - 1)):
        valid = here.observe().valid
        action = np.where(valid, rng.random(valid.shape), -1.0).argmax(axis=1)
        k, u = np.divmod(np.maximum(action - 1, 0), width)
        here.place(action)
        there.place(np.where(action == 0, 0, 1 + np.argsort(order)[k] * width + u))
    one, other = scores(built_in(), here.observe())[0], scores(built_in(), there.observe())[0]
    placed = one[1:].reshape(gpus, width)[order]
    assert np.allclose(placed, other[1:].reshape(gpus, width), atol=1e-4)
    assert np.isclose(one[0], other[0], atol=1e-4)


@pytest.mark.slow
@settings(max_examples=25)
@given(seed=st.integers(0, 2**31), models=st.integers(1, 12), gpus=st.integers(1, 6))
def test_every_plan_fits(seed: int, models: int, gpus: int) -> None:
    problem = instances.sample(np.random.default_rng(seed), tables(), models, gpus, backlog_s=0.05)
    gpu, units = decide(problem, built_in(), seed=seed)
    assert fits(problem, gpu, units)
    assert ((gpu == -1) | ((units >= 1) & (units <= problem.units[np.maximum(gpu, 0)]))).all()
