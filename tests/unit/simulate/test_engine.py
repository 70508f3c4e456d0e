import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from known_service import KnownService
from simulation_oracle import Oracle
from triton_batches import SEEN, Case

from controlplane.domain.errors import InputError
from controlplane.domain.plan import ServedModel
from controlplane.domain.serving import LONGEST_MS, Precedence
from controlplane.domain.workload import Arrivals
from controlplane.latency.queueing.batch_queue import solve
from controlplane.simulate.arrivals import ArrivalStream, Demand, Gaps, Trace
from controlplane.simulate.engine import Scaled, Settings, simulate
from controlplane.simulate.network import Conditions, Noise, components, seed_of

pytestmark = pytest.mark.slow

AFFINE = tuple(2.0 + 0.5 * k for k in range(1, 17))
TRUTH = {
    "t4": KnownService(
        {"a": AFFINE, "b": (5.0,), "c": tuple(1.0 + 0.2 * k**1.4 for k in range(1, 17))},
        {("a", "b"): 0.3, ("b", "a"): 0.15, ("a", "c"): 0.5, ("c", "a"): 0.1, ("b", "c"): 0.25},
    )
}


def with_client_batches(plan, size):
    """The plan with requests of `size[model]` inferences; rates stay those of inferences."""

    def sent(partition):
        workloads = tuple(replace(w, client_batch=size.get(w.model, 1)) for w in partition.workloads)
        return replace(partition, workloads=workloads)

    return replace(plan, gpus=tuple(replace(g, partitions=tuple(map(sent, g.partitions))) for g in plan.gpus))


def random_fleet(rng, plan_of):
    """Up to three GPUs, pools, shared queues, instances, delays, limits, jitter, client batches."""
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
                names = [(name, 20.0) for name, _ in joined[3][: int(rng.integers(1, 3))]]
            else:
                names = [
                    (f"w{workloads + i}", float(rng.uniform(20, 250))) for i in range(rng.integers(1, 3))
                ]
                workloads += len(names)
            rows.append((f"g{gpu}", f"p{gpu}-{part}", served, names))
    conditions = Conditions(
        noise={("t4", "a"): Noise(float(rng.choice([0.0, 0.3])), 0.5)},
        waiting=int(rng.choice([4, 1000])),
        max_batch={"a": int(rng.choice([1, 12]))},
    )
    size = {"a": int(rng.choice([1, 1, 2, 3])), "c": int(rng.choice([1, 2]))}
    return with_client_batches(plan_of(*rows), size), conditions


def with_turns(plan):
    """The plan with all models of a GPU in one partition; of those with the same model the first stays."""

    def served(partition):
        (model,) = partition.models
        each = partition.workloads[0].client_batch
        return replace(model, batch=max(model.batch // each, 1) * each, instances=1, max_queue_delay_us=0)

    def joined(gpu):
        first = {}
        for partition in gpu.partitions:
            first.setdefault(partition.models[0].model, partition)
        together = replace(
            gpu.partitions[0],
            models=tuple(map(served, first.values())),
            workloads=tuple(w for p in first.values() for w in p.workloads),
        )
        return replace(gpu, partitions=(together,))

    return replace(plan, gpus=tuple(map(joined, plan.gpus)))


@pytest.mark.parametrize("seed", range(200))
def test_compiled_loop_and_oracle_agree_request_by_request(seed, plan_of):
    compare_with_the_oracle(seed, *random_fleet(np.random.default_rng(seed), plan_of))


@pytest.mark.parametrize("seed", range(60))
def test_loop_and_oracle_agree_on_models_that_take_turns(seed, plan_of):
    plan, conditions = random_fleet(np.random.default_rng(seed), plan_of)
    compare_with_the_oracle(seed, with_turns(plan), conditions)


@pytest.mark.parametrize("seed", range(20))
def test_loop_and_oracle_agree_on_models_that_wait_in_order(seed, plan_of):
    random = np.random.default_rng(seed)
    plan, conditions = random_fleet(random, plan_of)
    plan = with_turns(plan)
    order = {
        placed.endpoint: Precedence("p", int(random.choice([0, 5, LONGEST_MS])), 1, 1000, 1000)
        for _, _, placed in plan.placements()
    }
    compare_with_the_oracle(seed, plan, replace(conditions, order=order))


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_loop_and_oracle_agree_on_requests_that_wait_too_long(seed, turns, plan_of):
    random = np.random.default_rng(seed)
    plan, conditions = random_fleet(random, plan_of)
    drop_after_ms = float(random.choice([3.0, 20.0]))

    def greedy(partition):
        models = tuple(replace(m, max_queue_delay_us=0) for m in partition.models)
        asked = tuple(
            replace(w, client_batch=1, rate_rps=4 * w.rate_rps, drop_after_ms=drop_after_ms)
            for w in partition.workloads
        )
        return replace(partition, models=models, workloads=asked)

    plan = replace(
        plan, gpus=tuple(replace(g, partitions=tuple(map(greedy, g.partitions))) for g in plan.gpus)
    )
    compare_with_the_oracle(seed, with_turns(plan) if turns else plan, conditions)


def test_a_request_that_waits_too_long_is_dropped_when_the_next_batch_starts(plan_of):
    plan = plan_of(("g0", "p0", ServedModel("b", 1), [("w", 100.0)]))
    (gpu,) = plan.gpus
    (partition,) = gpu.partitions
    asked = replace(partition.workloads[0], drop_after_ms=7.0)
    plan = replace(plan, gpus=(replace(gpu, partitions=(replace(partition, workloads=(asked,)),)),))
    demands = {"w": Trace((0.0, 0.001, 0.002, 0.003, 0.0031, 0.016))}
    result = simulate(plan, TRUTH, Settings(seconds=1.0, demands=demands, answers=10))
    # Batches take 5 ms: the third request waits until 10, 8 ms; the fourth 7, the fifth until 15.
    assert [a.arrival_ms for a in result.answers] == pytest.approx([0.0, 1.0, 3.0, 16.0])
    assert only(result).drops_percent == pytest.approx(100 * 2 / 6)


def test_a_short_request_passes_the_long_ones_that_wait(plan_of):
    """Three requests of the long model wait; the short one comes last and goes second."""
    plan = with_turns(
        plan_of(
            ("g0", "p0", ServedModel("b", 1), [("long", 1.0)]),
            ("g0", "p1", ServedModel("c", 1), [("short", 1.0)]),
        )
    )
    seconds = Settings(
        seconds=1.0, demands={"long": Trace((0.0, 0.001, 0.002)), "short": Trace((0.003,))}, answers=10
    )

    def served(**conditions):
        answers = simulate(plan, TRUTH, seconds, Conditions(**conditions)).answers
        return [a.workload for a in sorted(answers, key=lambda a: a.arrival_ms + a.latency_ms)]

    order = {"long": Precedence("p0", LONGEST_MS, 1, 9, 9), "short": Precedence("p0", 0, 1, 9, 9)}
    assert served(order=order) == ["long", "short", "long", "long"]
    first_come = {endpoint: replace(one, after_ms=0) for endpoint, one in order.items()}
    assert served(order=first_come) == ["long", "long", "long", "short"]


def compare_with_the_oracle(seed, plan, conditions):
    seconds = 0.4
    result = simulate(plan, TRUTH, Settings(seconds=seconds, seed=seed, answers=10_000), conditions)
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
            server = part.servers[seen.server]
            assert (other.batch, other.partition) == (seen.batch * server.client_batch, server.partition)
            answered += 1
    assert answered == len(fast) > 0
    for workload in result.workloads:
        missing = drops.get(workload.name, 0)
        assert round(workload.drops_percent * workload.requests / 100) == missing


ONE = ServedModel("a", 8)


def only(result):
    (workload,) = result.workloads
    return workload


@pytest.mark.parametrize("client_batch", [2, 4, 8])
def test_client_batches_make_a_queue_of_requests(plan_of, client_batch):
    batch = 8
    rate = 1000 * 0.7 * batch / AFFINE[batch - 1]
    plan = with_client_batches(
        plan_of(("g", "p", ServedModel("a", batch), [("w", rate)])), {"a": client_batch}
    )
    result = only(simulate(plan, TRUTH, Settings(1000.0)))
    law = solve(rate / client_batch, AFFINE[client_batch - 1 :: client_batch], batch // client_batch)
    assert result.requests == pytest.approx(1000.0 * rate / client_batch, rel=0.02)
    assert result.p99_ms == pytest.approx(law.p99_ms[0], rel=0.06)
    assert result.throughput_rps == pytest.approx(rate, rel=0.02)
    assert result.utilisation == pytest.approx(0.7, rel=0.02)


@pytest.mark.parametrize("case", SEEN, ids=lambda case: case.name)
def test_requests_that_do_not_fill_a_batch_go_together_as_in_triton(plan_of, case: Case):
    served = ServedModel("a", case.preferred)
    plan = with_client_batches(plan_of(("g", "p", served, [("w", 100.0)])), {"a": case.client_batch})
    slow = {"t4": KnownService({"a": (100.0,)})}
    arrivals = Trace(tuple(0.004 * i for i in range(sum(case.together))))
    settings = Settings(5.0, demands={"w": arrivals}, answers=100)
    conditions = Conditions(max_batch={"a": case.max_batch_size})
    answers = simulate(plan, slow, settings, conditions).answers
    ends = Counter(round(a.arrival_ms + a.latency_ms) for a in answers)
    assert tuple(ends[at] for at in sorted(ends)) == case.together


def test_exponential_service_makes_mm1(plan_of):
    plan = plan_of(("g", "p", ServedModel("b", 1), [("w", 100.0)]))
    noisy = Conditions(noise={("t4", "b"): Noise(jitter=1.0, frontend_ms=2.0)})
    result = only(simulate(plan, TRUTH, Settings(3000.0), noisy))
    assert result.mean_ms == pytest.approx(2.0 + 10.0, rel=0.03)
    assert result.p99_ms == pytest.approx(2.0 + 10.0 * math.log(100), rel=0.05)


def test_equal_settings_give_equal_results(plan_of):
    plan = plan_of(("g", "p1", ONE, [("w", 300.0)]), ("g", "p2", ServedModel("b", 1), [("v", 50.0)]))
    first, again = (simulate(plan, TRUTH, Settings(20.0)).document() for _ in range(2))
    assert first == again
    assert simulate(plan, TRUTH, Settings(20.0, seed=2)).document() != first


def test_another_workload_leaves_the_arrivals_of_the_first_as_they_were(plan_of):
    alone = plan_of(("g", "p1", ONE, [("w", 300.0)]))
    beside = plan_of(("g", "p1", ONE, [("w", 300.0)]), ("h", "p2", ServedModel("b", 1), [("v", 50.0)]))
    seen = [simulate(p, TRUTH, Settings(20.0)).document()["workloads"][0] for p in (alone, beside)]
    assert seen[0] == seen[1]


def test_busy_neighbours_slow_a_batch_down(plan_of):
    quiet = plan_of(("g", "p1", ONE, [("w", 200.0)]))
    noisy = plan_of(("g", "p1", ONE, [("w", 200.0)]), ("g", "p2", ServedModel("b", 1), [("v", 190.0)]))
    before, after = (simulate(p, TRUTH, Settings(50.0)) for p in (quiet, noisy))
    assert after.workloads[0].mean_ms > 1.2 * before.workloads[0].mean_ms
    assert after.gpus[0].partitions[1].busy_percent > 95


def test_a_slower_truth_breaks_what_the_belief_holds(plan_of):
    rate = 0.96 * 1000 * 8 / AFFINE[7]
    plan = plan_of(("g", "p", ONE, [("w", rate)]), arrivals=Arrivals.CONSTANT)
    assert only(simulate(plan, TRUTH, Settings(60.0))).holds
    slower = {"t4": Scaled(TRUTH["t4"], 1.1)}
    broken = simulate(plan, slower, Settings(60.0))
    assert broken.breaks == 1
    assert only(broken).utilisation == pytest.approx(0.96 * 1.1, rel=0.01)


@pytest.mark.parametrize("names", [("w",), ("w", "v", "u")])
@pytest.mark.parametrize("servers", [1, 2, 4])
def test_servers_and_their_workloads_see_what_the_queue_model_says(plan_of, servers, names):
    rate = 0.75 * servers * 1000 * 8 / AFFINE[7]
    shared = [(name, rate / servers / len(names)) for name in names]
    plan = plan_of(*((f"g{i}", f"p{i}", ONE, shared) for i in range(servers)))
    result = simulate(plan, TRUTH, Settings(300_000 * len(names) / rate))
    law = solve(rate, AFFINE, 8, servers=servers)
    assert [w.name for w in result.workloads] == list(names)
    for seen in result.workloads:
        assert seen.p99_ms == pytest.approx(law.p99_ms[0], rel=0.025)
        assert seen.mean_ms == pytest.approx(law.mean_ms[0], rel=0.015)
        assert seen.utilisation == pytest.approx(0.75, rel=0.01)
    busy = [gpu.busy_percent for gpu in result.gpus]
    assert busy == pytest.approx([busy[0]] * servers, rel=0.02)


def test_instances_share_a_queue_and_a_pools_servers_do_not(plan_of):
    rate = 0.8 * 2 * 1000 * 8 / AFFINE[7]
    apart = plan_of(("g", "p", ONE, [("w", rate / 2)]), ("h", "q", ONE, [("w", rate / 2)]))
    within = plan_of(("g", "p", ServedModel("a", 8, instances=2), [("w", rate)]))
    pool, instances = (only(simulate(plan, TRUTH, Settings(200.0))) for plan in (apart, within))
    assert pool.p99_ms > 1.04 * instances.p99_ms


def test_drops_break_the_slo(plan_of):
    plan = plan_of(("g", "p", ServedModel("b", 1), [("w", 400.0)]), slo_ms=1e6)
    seen = only(simulate(plan, TRUTH, Settings(20.0), Conditions(waiting=10)))
    assert seen.drops_percent == pytest.approx(50, abs=3)
    assert seen.violations_percent == seen.drops_percent
    assert not seen.holds
    assert seen.max_ms == pytest.approx(55, abs=5.01)
    assert seen.throughput_rps == pytest.approx(200, rel=0.02)


def test_a_trace_and_a_step_take_the_place_of_the_plans_rate(plan_of):
    plan = plan_of(("g", "p", ONE, [("w", 10.0), ("v", 10.0)]))
    demands = {"w": Trace((0.1, 0.2)), "v": Demand(gaps=Gaps.CONSTANT, steps=((0, 0), (10, 500)))}
    result = simulate(plan, TRUTH, Settings(20.0, demands=demands))
    by_name = {w.name: w for w in result.workloads}
    assert by_name["w"].requests == 2
    assert by_name["v"].requests == pytest.approx(5000, abs=1)


def test_what_the_truth_does_not_cover_is_named(plan_of):
    plan = plan_of(("g", "p", ServedModel("x", 1), [("w", 1.0)]))
    with pytest.raises(InputError, match="has no profile of x"):
        simulate(plan, TRUTH)
    with pytest.raises(InputError, match="no latency model for t4"):
        simulate(plan, {})


def test_a_seed_means_the_same_on_every_machine(plan_of):
    """Numbers as they came out once: what changes them changes every answer people have kept."""
    plan = plan_of(("g", "p1", ONE, [("w", 300.0)]), ("g", "p2", ServedModel("b", 1), [("v", 90.0)]))
    noisy = Conditions(noise={("t4", "a"): Noise(0.1, 0.2)})
    seen = simulate(plan, TRUTH, Settings(50.0, seed=7), noisy).workloads
    assert [w.requests for w in seen] == [14913, 4471]
    assert [w.p50_ms for w in seen] == pytest.approx([4.238932291667, 5.764104079132], rel=1e-9)
    assert [w.p99_ms for w in seen] == pytest.approx([8.586354166667, 25.830625], rel=1e-9)
    assert [w.mean_ms for w in seen] == pytest.approx([4.48434475038, 8.33553743457], rel=1e-9)


def test_a_gpu_that_only_shadows_stand_on_is_idle(plan_of):
    plan = plan_of(("g0", "p", ServedModel("a", 4), [("w", 100.0)]))
    spare = replace(plan, gpus=(replace(plan.gpus[0], id="spare", partitions=()), *plan.gpus))
    result, without = (simulate(p, TRUTH, Settings(seconds=5.0)) for p in (spare, plan))
    assert [(g.id, g.busy_percent > 0, len(g.partitions)) for g in result.gpus] == [
        ("spare", False, 0),
        ("g0", True, 1),
    ]
    assert result.workloads[0].requests == without.workloads[0].requests > 0
