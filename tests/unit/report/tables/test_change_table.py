"""What a plan changes about the one before, as a person reads it."""

from collections.abc import Sequence
from dataclasses import replace

import build

from controlplane.domain.plan import (
    Infeasible,
    Partition,
    Placement,
    Plan,
    PlannedGpu,
    Rule,
    ServedModel,
    Shadow,
)
from controlplane.domain.workload import ShadowPolicy, Workload
from controlplane.planning.replan.differences import Ending, TermChange, endings
from controlplane.report.tables.change_table import change_table, terms_line
from controlplane.report.tables.terminal import plain


def pool(rate_rps: float, slo_ms: float) -> Plan:
    """One workload on three servers."""
    placement = Placement("W1", "a", "ssd", rate_rps / 3, slo_ms)
    gpus = tuple(
        PlannedGpu(
            f"v100-{i}", "v100", (Partition(f"W1-{i + 1}", 40.0, (ServedModel("ssd", 2),), (placement,)),)
        )
        for i in range(3)
    )
    return Plan("joint", Rule.P99, "ours", gpus)


def lines(before: Plan, after: Plan, wanted: Sequence[Workload] = ()) -> list[list[str]]:
    shown = plain(change_table(before, after, wanted))
    return [line.split() for line in shown.splitlines() if line.strip()]


def test_what_a_workload_that_stays_asks_for_otherwise_is_told_of_the_whole_pool() -> None:
    told = lines(pool(100, 40), pool(120, 35.5))
    assert told[0] == ["0", "partitions", "changed,", "0", "started", "or", "moved"]
    assert told[1:2] == [["changed", "in", "the", "spec:", "1", "workload"]]
    assert told[3:] == [["W1", "slo_ms", "40", "35.5"], ["W1", "rate_rps", "100", "120"]]


def test_the_same_asked_of_other_parts_is_nothing() -> None:
    plan = pool(100, 40)
    two = [replace(p, workloads=(replace(p.workloads[0], rate_rps=50.0),)) for _, p in plan.partitions()]
    fewer = replace(
        plan, gpus=tuple(replace(g, partitions=(p,)) for g, p in zip(plan.gpus[:2], two[:2], strict=True))
    )
    told = lines(plan, fewer)
    assert not any("differently:" in line for line in told)
    assert ["stopped", "W1-3", "40", "%", "of", "v100-2,", "batch", "2", "–", "W1"] in told
    assert lines(plan, plan) == [["nothing", "changes"]]


def shop(**endpoints: str) -> Plan:
    """A partition for each workload of one model; its endpoint."""
    partitions = (
        Partition(name, 20.0, (ServedModel("ssd", 2),), (Placement(name, endpoint, "ssd", 10, 50),))
        for name, endpoint in endpoints.items()
    )
    return build.plan(*partitions)


def test_an_endpoint_renamed_by_a_second_workload_is_a_warning_and_a_change() -> None:
    told = lines(shop(rank="ssd"), shop(rank="rank", like="like"))
    first = " ".join(" ".join(line) for line in told[:3])
    assert first.startswith(
        "warning: endpoint ssd ends, its clients will get 404: workload rank gets endpoint rank"
    )
    assert "write `endpoint: ssd` in the spec's line of rank, then plan again" in first
    assert ["2", "partitions", "changed,", "1", "started", "or", "moved"] in told
    place = ["20", "%", "of", "v100-0,", "batch", "2"]
    assert ["renamed", "rank", *place, *place, "rank"] in told


def test_a_shadow_that_starts_anew_is_a_change_though_its_partition_stays() -> None:
    def standing(percent: float) -> Plan:
        (gpu,) = shop(a="a", b="b").gpus
        shadow = Shadow(ShadowPolicy.HOT, gpu.id, percent - 20.0, percent)
        return replace(shop(), gpus=(replace(gpu, partitions=(replace(gpu.partitions[0], shadow=shadow),)),))

    told = lines(standing(30), standing(40))
    assert " ".join(told[0]) == "0 partitions changed, 0 started or moved; 1 more shadow changed"
    assert " ".join(told[2]) == "shadow a hot, 30 % of v100-0 hot, 40 % of v100-0"
    assert lines(standing(30), standing(30)) == [["nothing", "changes"]]


def test_who_takes_over_an_endpoint_that_ends() -> None:
    (told,) = [line for line in lines(shop(a="a", b="b"), shop(a="a")) if line[0] == "endpoint"]
    assert " ".join(told) == "endpoint b ends: workload b is no longer served"
    before = shop(rank="ssd", like="like")
    assert endings(before, shop(rank="ssd", like="like", new="new")) == ()
    assert endings(before, shop(rank="ssd")) == (Ending("like", "like", ()),)
    # Another took it over: it is served.
    assert endings(before, shop(like="ssd")) == (Ending("like", "like", (("like", "ssd"),)),)
    # The model's own name, which nobody need have typed, is no workload's: its heirs are those of the model.
    split = (Ending("ssd", "rank", (("eu", "eu"), ("us", "us"))),)
    assert endings(shop(rank="ssd"), shop(eu="eu", us="us")) == split
    assert endings(shop(rank="rank"), shop(eu="eu", us="us")) == (Ending("rank", "rank", ()),)


def test_who_became_infeasible_or_ceased_to_be_is_named() -> None:
    before = replace(shop(a="a", b="b"), infeasible=(Infeasible("c", "too fast"),))
    after = replace(shop(a="a", c="c"), infeasible=(Infeasible("b", "too fast"), Infeasible("new", "too")))
    wanted = tuple(
        Workload(name, "ssd", slo_ms, 10, name) for name, slo_ms in (("a", 50), ("b", 1), ("new", 1))
    )
    told = [" ".join(line) for line in lines(before, after, wanted)]
    assert told[-5:] == [
        "changed in the spec: 1 workload",
        "workload field before after",
        "b slo_ms 50 1",
        "served before, infeasible now: b",
        "infeasible before, served now: c",
    ]


def test_an_apply_without_an_action_says_what_was_taken_over() -> None:
    assert terms_line(()) == "nothing to do"
    changed = (
        TermChange("a", "slo_ms", 2000.0, 1500.0),
        TermChange("a", "rate_rps", 100.0, 120.5),
        TermChange("b", "arrivals", "poisson", "constant"),
    )
    assert terms_line(changed) == (
        "nothing to do for the servers; changed: a: slo_ms 2000 -> 1500, rate_rps 100 -> 120.5; "
        "b: arrivals poisson -> constant"
    )
