"""Names for a new plan's GPUs: no other names move less."""

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.planning.replan.differences import moves
from controlplane.planning.replan.reuse import with_stable_ids


def fleet(groups: list[list[str]], servers: dict[str, int]) -> tuple[PlannedGpu, ...]:
    """A GPU for each group of workload names; one that appears `servers` times is a pool."""
    number: dict[str, int] = {}
    gpus = []
    for g, names in enumerate(groups):
        partitions = []
        for name in names:
            number[name] = number.get(name, 0) + 1
            suffix = f"-{number[name]}" if servers[name] > 1 else ""
            placement = Placement(name, name, "m", 1.0, 10.0)
            partitions.append(Partition(name + suffix, 10.0, (ServedModel("m", 1),), (placement,)))
        gpus.append(PlannedGpu(f"v100-{g}", "v100", tuple(partitions)))
    return tuple(gpus)


def plan(gpus: tuple[PlannedGpu, ...]) -> Plan:
    return Plan("by-hand", Rule.P99, "ours", gpus)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[PlannedGpu, ...], tuple[PlannedGpu, ...]]:
    """The same workloads, some of them pools, placed twice on up to four GPUs."""
    servers = {name: draw(st.integers(1, 2)) for name in "abcdef"[: draw(st.integers(1, 6))]}
    items = [name for name, count in servers.items() for _ in range(count)]

    def placed() -> tuple[PlannedGpu, ...]:
        groups: list[list[str]] = [[], [], [], []]
        for item in items:
            groups[draw(st.integers(0, 3))].append(item)
        return fleet([g for g in groups if g], servers)

    return placed(), placed()


@settings(max_examples=60)
@given(layouts())
def test_no_other_names_move_fewer_partitions(
    both: tuple[tuple[PlannedGpu, ...], tuple[PlannedGpu, ...]],
) -> None:
    before, now = both
    found = with_stable_ids(now, plan(before))
    assert sorted(p.id for g in found for p in g.partitions) == sorted(
        p.id for g in now for p in g.partitions
    )
    assert len({g.id for g in found}) == len(now)
    fewest = min(
        moves(
            plan(before),
            plan(tuple(PlannedGpu(n, "v100", g.partitions) for n, g in zip(names, now, strict=True))),
        )
        for names in permutations([f"v100-{i}" for i in range(4)], len(now))
    )
    assert moves(plan(before), plan(found)) <= fewest


def test_most_in_common_first_is_not_best() -> None:
    one = dict.fromkeys("abcdefg", 1)
    before = fleet([list("abcde"), list("fg")], one)
    now = fleet([list("abcfg"), list("de")], one)
    # abc stay where the first pair shares three, and four others move; fg and de stay in the best one.
    assert moves(plan(before), plan(with_stable_ids(now, plan(before)))) == 3
