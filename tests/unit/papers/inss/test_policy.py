import io
import subprocess
import sys
from dataclasses import asdict
from importlib import resources

import inss_instances as instances
import numpy as np
import pytest
from inss_brute_force import room
from inss_instances import base, tables

from controlplane.domain.errors import InputError
from controlplane.papers.inss.policy import Episodes, Weights, built_in, decide, read, rollout, worth, written
from controlplane.papers.inss.problem import Problem, fits, goodput, running, taken


def drawn(models: int, gpus: int, count: int, seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    return Problem.stack([instances.sample(rng, tables(), models, gpus, 0.05) for _ in range(count)])


def test_the_mask_is_what_fits_and_holds() -> None:
    """Against the problem's own functions, at every step of random plans."""
    problem = drawn(7, 3, 12, 1)
    rng = np.random.default_rng(2)
    plans = Episodes(problem)
    rows = np.arange(12)
    while not plans.done:
        seen, (gpus, width) = plans.observe(), plans.shape
        share, memory = taken(problem, plans.gpu, plans.units)
        for e in rows:
            one = Problem.stack([problem.row(e)])
            allowed = room(one, int(plans.at[e]), share[e][None], memory[e][None])[0]
            holds = np.zeros((gpus, width), dtype=bool)
            for k, u in np.argwhere(allowed):
                gpu, units = plans.gpu[e].copy(), plans.units[e].copy()
                gpu[plans.at[e]], units[plans.at[e]] = k, u + 1
                holds[k, u] = not goodput(problem.row(e), gpu, units).violated[plans.at[e]]
            assert np.array_equal(seen.valid[e, 1:].reshape(gpus, width), allowed & holds)
            assert seen.valid[e, 0]
        noise = np.where(seen.valid, rng.random(seen.valid.shape), -1.0)
        plans.place(noise.argmax(axis=1))
    assert fits(problem, plans.gpu, plans.units).all()


def test_gains_and_losses_are_the_problems_own() -> None:
    problem = drawn(8, 2, 16, 3)
    rng = np.random.default_rng(4)
    plans = Episodes(problem)
    lost_once = False
    while not plans.done:
        seen = plans.observe()
        before = goodput(problem, plans.gpu, plans.units).goodput_rps.sum(axis=1)
        noise = np.where(seen.valid, rng.random(seen.valid.shape), -1.0)
        noise[:, 0] = -0.5
        action = noise.argmax(axis=1)
        net = seen.actions[np.arange(16), action, 0]
        own = problem.rates_rps[np.arange(16), plans.at] / problem.rates_rps.mean(axis=1)
        lost_once |= bool((seen.valid & (seen.actions[..., 0] < own[:, None] - 0.01))[:, 1:].any())
        plans.place(action)
        after = goodput(problem, plans.gpu, plans.units).goodput_rps.sum(axis=1)
        assert np.allclose(net, (after - before) / problem.rates_rps.mean(axis=1), atol=1e-5)
    assert lost_once


def test_a_decision_fits_is_repeated_and_is_the_best_of_those_drawn() -> None:
    problem = instances.sample(np.random.default_rng(7), tables(), 6, 4)
    gpu, units = decide(problem, built_in(), seed=3)
    again = decide(problem, built_in(), seed=3)
    assert np.array_equal(gpu, again[0])
    assert np.array_equal(units, again[1])
    assert fits(problem, gpu, units)
    greedy = rollout(Problem.stack([problem]), built_in())
    best = worth(Problem.stack([problem]), gpu[None], units[None], None)
    assert best >= worth(Problem.stack([problem]), *greedy, None)


def test_what_runs_now_is_seen() -> None:
    problem = Problem.stack([base()])
    gpu, units = rollout(problem, built_in())
    first = Episodes(problem, running(gpu, units)).observe()
    none = Episodes(problem).observe()
    assert (first.actions[..., 6] == 0.5).any()
    assert (first.actions[..., 6] == 1.0).sum() == 1
    assert not none.actions[..., 6].any()


def test_wrong_weights_are_refused() -> None:
    arrays = asdict(built_in())
    with pytest.raises(InputError, match="other weights"):
        Weights.of({name: a for name, a in arrays.items() if name != "second"})
    with pytest.raises(InputError, match="shape"):
        Weights.of({**arrays, "first": arrays["first"][1:]})
    with pytest.raises(InputError, match="finite"):
        Weights.of({**arrays, "score": arrays["score"] * np.float32(np.nan)})


def pickled() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, about=np.array([{"schema_version": 1}], dtype=object))
    return stream.getvalue()


def test_a_policy_comes_back_as_written() -> None:
    back, about = read(written(built_in(), {"seed": 7}), "p.npz")
    one, other = asdict(built_in()), asdict(back)
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert about["seed"] == 7


@pytest.mark.parametrize(
    "content", [b"", b"not a zip", b"PK\x05\x06" + b"\0" * 18, written(built_in(), {})[:-200], pickled()]
)
def test_what_is_no_policy_is_named(content: bytes) -> None:
    with pytest.raises(InputError, match="not a policy") as told:
        read(content, "p.npz")
    assert told.value.file == "p.npz"


def test_the_built_in_policy_is_small_and_says_where_it_is_from() -> None:
    raw = resources.files("controlplane.papers.inss").joinpath("policy.npz").read_bytes()
    told, about = read(raw, "policy.npz")
    assert asdict(told).keys() == asdict(built_in()).keys()
    assert len(raw) < 2**20
    assert about["seed"] == 1
    assert about["spec_sha256"]


def test_planning_with_a_policy_needs_no_torch() -> None:
    program = """
import sys
from pathlib import Path
from controlplane.files.plans import read_spec
from controlplane.runtime import SystemClock
from controlplane.runtime.jobs.plan import Choices, make_plan
from controlplane.domain.settings import PlanSettings
import controlplane.papers.inss as inss
spec, document = read_spec(Path(inss.__file__).parent / "policy.yaml")
asked = Choices("inss", PlanSettings(iterations=1))
plan = make_plan(spec, document, asked, profiles=Path("none"), cores=1, clock=SystemClock()).plan
assert "policy" in dict(plan.totals.phases_ms), plan.totals
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
