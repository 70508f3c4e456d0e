from __future__ import annotations

import math

import numpy as np
import pytest

from controlplane.domain.plan import ServedModel
from controlplane.simulate.arrivals import ArrivalStream, Demand
from controlplane.simulate.engine import Question, simulate
from controlplane.simulate.network import Conditions, Noise, components, seed_of
from controlplane.simulate.oracle import Oracle
from controlplane.simulate.truth import KnownService

pytestmark = pytest.mark.unit

AFFINE = tuple(2.0 + 0.5 * k for k in range(1, 17))
TRUTH = {
    "t4": KnownService(
        {"a": AFFINE, "b": (5.0,), "c": tuple(1.0 + 0.2 * k**1.4 for k in range(1, 17))},
        {("a", "b"): 0.3, ("b", "a"): 0.15, ("a", "c"): 0.5, ("c", "a"): 0.1, ("b", "c"): 0.25},
    )
}


def random_fleet(rng, plan_of):
    """Up to three GPUs, pools, shared queues, instances, delays, limits, timeouts, jitter."""
    rows = []
    workloads = 0
    for gpu in range(rng.integers(1, 4)):
        for part in range(rng.integers(1, 4)):
            model = str(rng.choice(["a", "b", "c"]))
            batch = 1 if model == "b" else int(rng.integers(1, 9))
            delay = int(rng.choice([0, 0, 3000])) if batch > 1 else 0
            served = ServedModel(model, batch, int(rng.choice([1, 1, 2])), delay)
            pooled = [r for r in rows if r[2].model == model]
            if pooled and rng.random() < 0.4:
                joined = pooled[rng.integers(len(pooled))]
                served = ServedModel(model, joined[2].batch, served.instances, joined[2].max_queue_delay_us)
                names = [(name, 20.0) for name, _ in joined[3][:1]]
            else:
                names = [
                    (f"w{workloads + i}", float(rng.uniform(20, 250))) for i in range(rng.integers(1, 3))
                ]
                workloads += len(names)
            rows.append((f"g{gpu}", f"p{gpu}-{part}", served, names))
    conditions = Conditions(
        noise={("t4", "a"): Noise(float(rng.choice([0.0, 0.3])), 0.5)},
        waiting=int(rng.choice([4, 1000])),
        timeout_ms=float(rng.choice([15.0, math.inf])),
        max_batch={"a": int(rng.choice([1, 12]))},
    )
    return plan_of(*rows), conditions


@pytest.mark.parametrize("seed", range(200))
def test_compiled_loop_and_oracle_agree_request_by_request(seed, plan_of):
    rng = np.random.default_rng(seed)
    plan, conditions = random_fleet(rng, plan_of)
    seconds = 0.4
    result = simulate(plan, TRUTH, Question(seconds=seconds, seed=seed, answers=10_000), conditions)
    fast = {(a.workload, a.arrival_ms): a for a in result.answers}
    answered = 0
    drops: dict[str, int] = {}
    for part in components(plan, TRUTH, conditions):
        arrivals = [
            ArrivalStream(
                Demand.of(s.placement.arrivals, s.rate_rps), np.random.default_rng(seed_of(seed, s.name))
            ).until(1000 * seconds)
            for s in part.streams
        ]
        for seen in Oracle(part, conditions, seed).run(arrivals):
            name = part.streams[seen.stream].name
            if seen.latency_ms is None:
                drops[name] = drops.get(name, 0) + 1
                continue
            other = fast[name, seen.arrival_ms]
            assert other.latency_ms == pytest.approx(seen.latency_ms, rel=1e-9, abs=1e-9)
            assert (other.batch, other.partition) == (seen.batch, part.servers[seen.server].partition)
            answered += 1
    assert answered == len(fast) > 0
    for workload in result.workloads:
        missing = drops.get(workload.name, 0)
        assert round(workload.drops_percent * workload.requests / 100) == missing
