"""Where shadows stand, and what they add: of layouts made by hand, whatever a search finds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import planning
import pytest
from planning import v100, workload

from controlplane.domain.device import MAX_MPS_CLIENTS
from controlplane.domain.plan import Partition, Plan, PlannedGpu, ServedModel
from controlplane.domain.workload import ShadowPlace, ShadowPolicy, ShadowWish
from controlplane.planning.judge.finalise import Draft, finalise
from controlplane.planning.judge.placements import clients_of, common_step, gpu_of, partition_of
from controlplane.planning.judge.shadows import has_room_for_shadows
from controlplane.planning.judge.verify import verify
from controlplane.planning.protocol import Device

HERE, ELSEWHERE = ShadowWish(), ShadowWish(place=ShadowPlace.OTHER_GPU)


def laid_out(wish: ShadowWish, shares: Sequence[Sequence[float]], stubs: Mapping[str, int] = {}) -> Plan:
    """GPUs with partitions of these shares, each of a workload that asks for little."""
    device, workloads, gpus = with_stubs(stubs), [], []
    for i, percents in enumerate(shares):
        partitions = []
        for j, percent in enumerate(percents):
            asked = replace(workload(f"W{i}-{j}", "alexnet", 500.0, 10.0), shadow=wish)
            workloads.append(asked)
            partitions.append(partition_of(asked.name, [asked], percent, 2, None))
        gpus.append(gpu_of(i, device, partitions))
    request = planning.p99_request(workloads, device=device)
    return finalise("by-hand", request, Draft(tuple(gpus)), 0.0)


def with_stubs(stubs: Mapping[str, int]) -> Device:
    """A V100 whose models are executed by these processes beside Triton."""
    device = v100("ours")
    return replace(device, profiles={n: replace(one, stubs=stubs) for n, one in device.profiles.items()})


def extras(plan: Plan) -> list[tuple[str, float]]:
    return [(p.shadow.gpu, p.shadow.extra_percent) for _, p in plan.partitions() if p.shadow is not None]


def test_on_another_gpu_it_has_more_where_its_own_has_none_to_give() -> None:
    here, there = (laid_out(wish, [[60.0, 40.0]]) for wish in (HERE, ELSEWHERE))
    assert here.verified
    assert there.verified
    assert extras(here) == [("v100-0", 0.0), ("v100-0", 0.0)]
    assert extras(there) == [("v100-1", 10.0), ("v100-1", 10.0)]
    assert [g.id for g in there.gpus] == ["v100-0", "v100-1"], "one more"


def test_of_a_whole_gpu_it_has_as_much_and_no_more_elsewhere() -> None:
    plan = laid_out(ELSEWHERE, [[100.0]])
    assert plan.verified
    assert extras(plan) == [("v100-1", 0.0)]


@pytest.mark.parametrize(("stubs", "each"), [({}, 1), ({"alexnet": 1}, 2), ({"step": 1, "other step": 1}, 3)])
def test_a_gpu_has_no_more_clients_of_mps_than_it_takes(stubs: Mapping[str, int], each: int) -> None:
    """Triton's Python backend runs each instance of a model in a process of its own, steps' ones too."""
    plan, most = laid_out(ELSEWHERE, [[10.0] * 10] * 6, stubs), MAX_MPS_CLIENTS // each
    standing = Counter(gpu for gpu, _ in extras(plan))
    full = {f"v100-{6 + i}": most for i in range(60 // most)}
    assert standing == full | {f"v100-{6 + len(full)}": 60 % most}
    assert plan.verified
    spare = plan.gpus[6]
    one = [replace(g, partitions=tuple(on(p, spare) for p in g.partitions)) for g in plan.gpus]
    said = [v.reason for v in verify(replace(plan, gpus=tuple(one)), {"v100": with_stubs(stubs)})]
    assert said == [f"has {60 * each} clients of MPS, those standing by included; it takes 48"]
    wishes = {w.name: HERE for _, _, w in plan.placements()}
    crowded = replace(plan.gpus[0], partitions=plan.gpus[0].partitions * 2)
    assert has_room_for_shadows(crowded, wishes, with_stubs(stubs)) == (40 * each <= MAX_MPS_CLIENTS)


def test_a_step_of_two_models_is_in_their_server_once() -> None:
    profiles = with_stubs({"step": 2}).profiles
    device = replace(v100("ours"), profiles=profiles | {"ssd": replace(profiles["ssd"], stubs={"ssd": 1})})
    served = tuple(ServedModel(name, 1) for name in ("alexnet", "vgg19", "ssd"))
    assert clients_of(Partition("p", 50.0, served, ()), device) == 4


def test_as_many_are_hot_as_fit_of_those_that_would_load_longer_than_a_second() -> None:
    device = v100("ours")
    memory_mb = {"vgg19": 3000.0, "resnet50": 1500.0, "ssd": 1200.0, "alexnet": 500.0}
    load_s = {"vgg19": 5.0, "resnet50": 2.0, "ssd": 1.5, "alexnet": 0.5}
    profiles = {m: replace(p, load_s=load_s.get(m)) for m, p in device.profiles.items()}
    workloads = [replace(workload(m, m, 500.0, 10.0), shadow=HERE) for m in memory_mb]
    partitions = [partition_of(w.name, [w], 20.0, 2, memory_mb[w.model]) for w in workloads]
    gpu = replace(gpu_of(0, device, partitions), memory_mb=sum(memory_mb.values()) + 3000.0)
    request = planning.p99_request(workloads, device=replace(device, profiles=profiles))
    plan = finalise("by-hand", request, Draft((gpu,)), 0.0)
    hot = {p.id for _, p in plan.partitions() if p.shadow and p.shadow.policy is ShadowPolicy.HOT}
    assert hot == {"resnet50", "ssd"}


def on(partition: Partition, gpu: PlannedGpu) -> Partition:
    assert partition.shadow is not None
    return replace(partition, shadow=replace(partition.shadow, gpu=gpu.id))


def short_of_memory(
    wish: ShadowWish, shares: Sequence[float], left_mb: float, *, batch: int = 1, device: Device | None = None
) -> Plan:
    """Models of a GPU with so much memory left, of which none would load in time; a context takes 400 MB.

    `batch` is the first one's.
    """
    device = device or v100("ours")
    memory_mb = dict(zip(("vgg19", "resnet50", "ssd"), (1500.0, 1200.0, 900.0), strict=True))
    workloads = [replace(workload(m, m, 800.0, 5.0), shadow=wish) for m in memory_mb]
    partitions = [
        partition_of(w.name, [w], percent, batch if w.model == "vgg19" else 1, memory_mb[w.model])
        for w, percent in zip(workloads, shares, strict=True)
    ]
    kind = device.pool.device
    pool = replace(device.pool, device=replace(kind, hardware={**kind.hardware, "process_mb": 400.0}))
    device = replace(device, pool=pool)
    gpu = replace(gpu_of(0, device, partitions), memory_mb=3600.0 + left_mb)
    request = planning.p99_request(workloads, device=device)
    return finalise("by-hand", request, Draft((gpu,)), 0.0)


@pytest.mark.parametrize("policy", [ShadowPolicy.AUTO, ShadowPolicy.SHARED])
def test_partitions_share_a_shadow_where_memory_lacks_for_one_each(policy: ShadowPolicy) -> None:
    plan = short_of_memory(ShadowWish(policy), (30.0, 20.0, 20.0), 2900.0)
    assert plan.verified, plan.violations
    (gpu,) = plan.gpus
    assert gpu.shared is not None
    assert gpu.shared.memory_mb == 2800.0, "a context once, the weights of all"
    assert {p.id for p in gpu.sharers} == {"vgg19", "resnet50", "ssd"}
    assert {p.shadow.percent for p in gpu.sharers if p.shadow} == {gpu.shared.percent}
    assert 30.0 <= gpu.shared.percent <= 50.0, "enough for the largest, and what the smallest leaves"
    assert all(p.shadow.covers is not None for p in gpu.sharers if p.shadow)


@pytest.mark.parametrize(("batch", "together"), [(1, 3), (2, 2)])
def test_models_that_execute_another_with_several_batches_share_no_server(batch: int, together: int) -> None:
    device = v100("ours")
    both = {m: replace(device.profiles[m], executes={"common": 64}) for m in ("vgg19", "ssd")}
    device = replace(device, profiles={**device.profiles, **both})
    wish, shares = ShadowWish(ShadowPolicy.SHARED), (20.0, 20.0, 20.0)
    plan = short_of_memory(wish, shares, 9000.0, batch=batch, device=device)
    assert plan.verified, plan.violations
    assert sum(len(gpu.sharers) for gpu in plan.gpus) == together
    (gpu,) = short_of_memory(wish, shares, 9000.0, batch=batch).gpus
    said = [v.subject for v in verify(replace(plan, gpus=(gpu,)), {"v100": device})]
    assert said == ([] if batch == 1 else ["v100-0.shared"])


@pytest.mark.parametrize(("limit", "own", "said"), [(64, 0, True), (1, 0, False), (64, 4, True)])
def test_a_common_step_has_its_callers_batches_up_to_its_own_limit(limit: int, own: int, said: bool) -> None:
    """`own`: the batch of the step where it is served itself, beside the one caller of batch 8."""
    profiles = v100("ours").profiles
    callers = {m: replace(profiles[m], executes={"ssd": limit}) for m in ("vgg19", "resnet50")}
    batches = {"vgg19": 8, "ssd": own} if own else {"vgg19": 8, "resnet50": 4}
    parts = [partition_of(m, [workload(m, m, 800.0, 5.0)], 20.0, b, None) for m, b in batches.items()]
    assert common_step(parts, {**profiles, **callers}) == ("ssd" if said else None)


def test_only_partitions_of_like_shares_share_a_shadow() -> None:
    plan = short_of_memory(ShadowWish(), (60.0, 15.0, 20.0), 1800.0)
    assert {p.id for g in plan.gpus for p in g.sharers} == {"resnet50", "ssd"}


def test_where_memory_suffices_or_not_even_one_context_fits_no_shadow_is_shared() -> None:
    for left_mb in (3600.0, 100.0):
        (gpu,) = short_of_memory(ShadowWish(), (30.0, 20.0, 20.0), left_mb).gpus
        assert gpu.shared is None


def test_a_shared_shadow_counts_once_and_must_be_there() -> None:
    plan = short_of_memory(ShadowWish(ShadowPolicy.SHARED), (30.0, 20.0, 20.0), 2700.0)
    assert [v.reason for v in plan.violations] == [
        "needs 6400 MB and has 6300 MB: vgg19 1500, resnet50 1200, ssd 900, the shared shadow 2800"
    ]
    without = replace(plan, gpus=tuple(replace(g, shared=None) for g in plan.gpus))
    said = [v.reason for v in verify(without, {"v100": v100("ours")})]
    assert said == ["its shadow is shared, and v100-0 has none of its share"] * 3


def test_a_demanded_time_is_met_by_a_shared_shadow_first_for_those_that_need_it() -> None:
    plan = short_of_memory(ShadowWish(within_s=1.0), (30.0, 20.0, 20.0), 2900.0)
    assert plan.verified, plan.violations
    assert {p.id for g in plan.gpus for p in g.sharers} == {"vgg19", "resnet50", "ssd"}
    too_soon = short_of_memory(ShadowWish(within_s=0.1), (30.0, 20.0, 20.0), 2900.0)
    assert {v.subject for v in too_soon.violations} == {"vgg19", "resnet50", "ssd"}
