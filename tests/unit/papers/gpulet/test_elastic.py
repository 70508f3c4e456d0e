"""Alg 1 as printed: FINDBESTFIT and TEMPORALSCHEDULING on the surrogate of an RTX 2080 Ti."""

import math
from dataclasses import replace

import pytest
from turing import SLO_MS, device

from controlplane.papers.gpulet import elastic
from controlplane.papers.gpulet.gpulets import Cluster, Gpu, Gpulet
from controlplane.papers.gpulet.latency import Gpulet as Model
from controlplane.papers.gpulet.sizing import SCHEMES, Demand, Sizing, Times


def sizing(scheme: str = "gpulet") -> Sizing:
    model = device().latency
    assert isinstance(model, Model)
    return Sizing(Times.of(model, 32), SCHEMES[scheme])


def cluster(*pieces: tuple[int, ...]) -> Cluster:
    gpus = [Gpu(math.inf, 0.0, [Gpulet(percent) for percent in own]) for own in pieces]
    return Cluster(gpus, sizing().times, interference=False)


def demand(model: str, rate: int, slo_ms: float | None = None, key: int = 0) -> Demand:
    return Demand(key, device().latency.models.index(model), rate, slo_ms or SLO_MS[model])


def held(on: Cluster) -> list[tuple[int, int]]:
    """GPU and size of every gpulet in use."""
    return [(n, p.percent) for n, gpu in enumerate(on.gpus) for p in gpu.pieces if p.residents]


def test_the_smallest_remaining_gpulet_comes_before_a_whole_gpu() -> None:
    on = cluster((100,), (60, 40))
    assert elastic.partition([demand("googlenet", 20)], on, sizing()) is None
    assert held(on) == [(1, 40)]


def test_a_whole_gpu_is_cut_to_the_ideal_size() -> None:
    on = cluster((100,))
    assert elastic.partition([demand("googlenet", 20)], on, sizing()) is None
    assert [p.percent for p in on.gpus[0].pieces] == [20, 80]


def test_a_gpulet_in_which_the_slo_fails_is_passed_over() -> None:
    own = sizing()
    wanted = demand("vgg16", 20)
    small = own.times.alone(wanted.model, 20, 1)
    strict = demand("vgg16", 20, 1.9 * small)
    on = cluster((20, 80), (100,))
    assert elastic.partition([strict], on, own) is None
    assert held(on) == [(0, 80)]


def test_light_models_take_turns_as_soon_as_they_are_placed() -> None:
    light = [demand(m, 5, key=n) for n, m in enumerate(("vgg16", "resnet50", "densenet161"))]
    on = cluster((100,), (100,))
    assert elastic.partition(light, on, sizing()) is None
    assert len(held(on)) == 1
    (piece,) = [p for _, p in on.pieces() if p.residents]
    busy = sum(on.time_ms(r.demand, piece, r.batch) for r in piece.residents)
    assert busy <= piece.duty_ms
    assert piece.duty_ms + busy <= min(d.slo_ms for d in light) + 1e-9
    assert all(r.throughput >= r.rate - 1e-9 for r in piece.residents)


def test_the_larger_gpulet_of_a_pair_is_kept() -> None:
    on = cluster((80, 20))
    first, second = demand("resnet50", 5), demand("vgg16", 5, key=1)
    assert elastic.partition([first], on, sizing()) is None
    assert held(on) == [(0, 20)]
    assert elastic.partition([second], on, sizing()) is None
    assert held(on) == [(0, 80)]
    assert len(on.gpus[0].pieces[0].residents) == 2


@pytest.mark.parametrize("as_printed", [False, True])
def test_a_model_with_several_gpulets_takes_turns_only_as_printed(as_printed: bool) -> None:
    own = replace(sizing(), as_printed=as_printed)
    light, heavy = demand("vgg16", 5), demand("resnet50", 1, key=1)
    size = own.efficient(heavy)
    heavy = replace(heavy, rate=int(own.saturated(heavy, size)[1]) + 10)
    on = cluster(*[(size,)] * 3)
    assert elastic.partition([light, heavy], on, own) is None
    assert sum(p.takes(heavy) is not None for _, p in on.pieces()) > 1
    assert (max(len(p.residents) for _, p in on.pieces()) > 1) == as_printed


@pytest.mark.parametrize(("scheme", "residents"), [("greedy-best-fit", 1), ("sbp", 2)])
def test_without_turns_no_gpulet_holds_two(scheme: str, residents: int) -> None:
    light = [demand("vgg16", 5), demand("resnet50", 5, key=1)]
    on = cluster((100,), (100,))
    assert elastic.partition(light, on, sizing(scheme)) is None
    assert max(len(p.residents) for _, p in on.pieces()) == residents
