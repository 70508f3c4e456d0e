"""What is said of a workload that has no place: fragmented room, clients, and models that run out."""

from dataclasses import replace

import planning
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning import workload

from controlplane.domain.plan import Infeasible, Partition, PlannedGpu, Rule, ServedModel
from controlplane.domain.workload import ShadowPolicy, ShadowWish
from controlplane.planning.explain.infeasible import exhausted, is_fragmented, with_model_limit
from controlplane.planning.judge.placements import gpu_of, partition_of

PERCENTS = st.integers(0, 40).map(lambda n: 2.5 * n)


@given(st.lists(PERCENTS, min_size=1, max_size=5), PERCENTS.filter(bool), st.integers(1, 4))
def test_fragmented_room_is_enough_in_all_and_holds_too_few_pieces(
    free: list[float], share: float, servers: int
) -> None:
    left, placed = list(free), 0
    for i in range(len(left)):
        while left[i] >= share and placed < servers:
            left[i], placed = left[i] - share, placed + 1
    assert is_fragmented(free, share, servers) == (sum(free) >= servers * share and placed < servers)


@pytest.mark.parametrize(
    ("strategy", "rule", "slo_ms", "rate_rps"),
    [("joint", Rule.P99, 40.0, 250.0), ("igniter", Rule.HALF_SLO, 40.0, 300.0)],
)
def test_a_refusal_for_fragmented_room_says_so(
    strategy: str, rule: Rule, slo_ms: float, rate_rps: float
) -> None:
    """Three alike, of which two GPUs hold one each and leave much of themselves."""
    asked = [replace(workload(name, "vgg19", slo_ms, rate_rps), isolated=True) for name in ("a", "b", "c")]
    latency = "igniter" if strategy == "igniter" else "ours"
    plan = planning.planned(strategy, asked, latency=latency, rule=rule, device=planning.v100(latency, 2))
    (refused,) = plan.infeasible
    free = [100.0 - gpu.percent for gpu in plan.gpus]
    assert len(free) == 2
    assert refused.reason.startswith("the free v100 shares are fragmented: they add up to ")
    assert f"at most {max(free):g} % on one GPU, and it takes about " in refused.reason


@pytest.mark.parametrize(("servers", "alone_fits", "with_shadow_fits"), [(22, True, True), (23, True, False)])
def test_clients_run_out_where_a_server_and_its_shadow_find_too_few(
    servers: int, alone_fits: bool, with_shadow_fits: bool
) -> None:
    """Each server of a Python model is two clients of MPS; a GPU takes 48."""
    device = planning.v100("ours", 1)
    profile = replace(device.profiles["alexnet"], stubs={"alexnet": 1})
    device = replace(device, profiles={"alexnet": profile})
    running = [workload(f"W{i}", "alexnet", 500.0, 10.0) for i in range(servers)]
    gpu = gpu_of(0, device, [partition_of(w.name, [w], 2.5, 2, None) for w in running])
    one_more = workload("more", "alexnet", 500.0, 10.0)
    for policy, fits in ((ShadowPolicy.NONE, alone_fits), (ShadowPolicy.HOT, with_shadow_fits)):
        wishes = {w.name: ShadowWish(ShadowPolicy.NONE) for w in running} | {"more": ShadowWish(policy)}
        asked = replace(one_more, shadow=wishes["more"])
        reason = exhausted([gpu], 2.5, asked, wishes, device)
        assert reason.startswith("clients run out") == (not fits)
        assert bool(reason) == (not fits)


def with_models(*counts: int) -> PlannedGpu:
    """A core whose partitions have so many models each."""
    partitions = [
        Partition(f"p{i}", 20.0, tuple(ServedModel(f"m{i}-{n}", 1) for n in range(count)), ())
        for i, count in enumerate(counts)
    ]
    return PlannedGpu("cpu-0", "cpu", tuple(partitions))


def test_a_limit_that_is_none_of_the_device_is_named() -> None:
    lost = (Infeasible("w", "all cores are taken"),)
    (named,) = with_model_limit(lost, [with_models(1, 1), with_models(5, 5, 5, 4, 4)])
    assert named.reason.startswith("all cores are taken; cpu-0 has 23 models")
    assert with_model_limit(lost, [with_models(5, 5, 4, 4, 4)]) == lost
    assert with_model_limit(lost, []) == lost
