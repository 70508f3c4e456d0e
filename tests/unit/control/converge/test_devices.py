"""A plan's GPU ids become devices of a host or a cluster, or what is missing is named."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.control.converge.devices import map_devices, missing_gpus, packed_devices
from controlplane.domain.device import HeldDevice
from controlplane.domain.errors import InputError
from controlplane.domain.plan import Partition, Plan, PlannedGpu, Rule, Shadow
from controlplane.domain.workload import ShadowPolicy

HOST = {
    "cpu": tuple(HeldDevice("cpu", name) for name in ("cpu-0", "cpu-2")),
    "v100": tuple(HeldDevice("v100", name) for name in ("GPU-a", "GPU-b")),
}


def gpu(
    name: str, shadow: str = "", *, selector: Mapping[str, str] = {}, other_node: bool = True
) -> PlannedGpu:
    """A GPU; with `shadow`, its partition's shadow stands on that one, on another node unless not wanted."""
    partitions: tuple[Partition, ...] = ()
    if shadow:
        beside = Shadow(ShadowPolicy.HOT, shadow, 0.0, 40.0, other_node=other_node)
        partitions = (Partition(f"p-{name}", 40.0, (), (), shadow=beside),)
    return PlannedGpu(name, name.rsplit("-", 1)[0], partitions, node_selector=selector)


def plan(*gpus: PlannedGpu) -> Plan:
    return Plan("igniter", Rule.P99, "ours", gpus)


def nodes(*sizes: int, **labels: str) -> dict[str, tuple[HeldDevice, ...]]:
    """Nodes n0, n1, ... with so many cores; the labels are those of n0."""
    told = tuple(labels.items())
    return {
        "cpu": tuple(
            HeldDevice("cpu", f"n{n}/cpu-{i}", f"n{n}", told if n == 0 else ())
            for n, size in enumerate(sizes)
            for i in range(size)
        )
    }


def node_of(device: str) -> str:
    return device.split("/")[0]


def test_gpus_are_counted_and_cores_of_a_host_have_names() -> None:
    assert map_devices(plan(gpu("v100-1"), gpu("cpu-2")), HOST) == {"v100-1": "GPU-b", "cpu-2": "cpu-2"}


@pytest.mark.parametrize(
    ("name", "says"), [("v100-2", "are 2"), ("cpu-1", "cpu-0, cpu-2"), ("t4-0", "no device of type 't4'")]
)
def test_what_the_host_lacks_is_named(name: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        map_devices(plan(gpu(name)), HOST)


def test_a_gpu_stays_on_its_device_while_another_node_is_away() -> None:
    both = map_devices(plan(gpu("cpu-0"), gpu("cpu-2")), nodes(2, 2))
    assert both == {"cpu-0": "n0/cpu-0", "cpu-2": "n1/cpu-0"}
    without_n0 = {"cpu": nodes(2, 2, 2)["cpu"][2:]}
    assert map_devices(plan(gpu("cpu-0"), gpu("cpu-2")), without_n0, both) == {
        "cpu-2": "n1/cpu-0",
        "cpu-0": "n1/cpu-1",
    }


def test_a_new_gpu_that_is_placed_first_takes_no_device_of_an_earlier_one() -> None:
    asked, known = plan(gpu("cpu-0", "cpu-1"), gpu("cpu-1"), gpu("cpu-2")), {"cpu-2": "n0/cpu-0"}
    assert map_devices(asked, nodes(2, 1), known) == {"cpu-0": "n0/cpu-1", "cpu-1": "n1/cpu-0", **known}


def test_a_node_selector_leaves_other_nodes_out() -> None:
    asked = plan(gpu("cpu-0", selector={"pool": "x"}))
    with pytest.raises(InputError, match="has the labels pool=x"):
        map_devices(asked, nodes(1, 1))
    labelled = {"cpu": tuple(reversed(nodes(1, 1, pool="x")["cpu"]))}
    assert map_devices(asked, labelled) == {"cpu-0": "n0/cpu-0"}
    with pytest.raises(InputError, match="node_selector is for --launcher kubernetes"):
        map_devices(asked, HOST)


def test_a_shadow_of_another_node_needs_one() -> None:
    asked = plan(gpu("cpu-0", "cpu-1"), gpu("cpu-1"))
    assert map_devices(asked, nodes(2, 1)) == {"cpu-0": "n0/cpu-0", "cpu-1": "n1/cpu-0"}
    with pytest.raises(InputError, match=r"no device of its kind is left on another node .* \(nodes: n0\)"):
        map_devices(asked, nodes(2))
    anywhere = plan(gpu("cpu-0", "cpu-1", other_node=False), gpu("cpu-1"))
    assert map_devices(anywhere, nodes(2)) == {"cpu-0": "n0/cpu-0", "cpu-1": "n0/cpu-1"}
    with pytest.raises(InputError, match="this host is one"):
        map_devices(plan(gpu("v100-0", "v100-1"), gpu("v100-1")), HOST)


@given(st.lists(st.integers(1, 4), min_size=2, max_size=6), st.data())
def test_pairs_of_two_nodes_always_get_them(sizes: list[int], data: st.DataObject) -> None:
    """Half of the GPUs on each of two nodes of equal size, any pairs between the halves."""
    size = sum(sizes)
    partner = data.draw(st.lists(st.integers(size, 2 * size - 1), min_size=size, max_size=size))
    gpus = [gpu(f"cpu-{i}", f"cpu-{other}") for i, other in enumerate(partner)]
    gpus += [gpu(f"cpu-{i}") for i in range(size, 2 * size)]
    found = map_devices(plan(*data.draw(st.permutations(gpus))), nodes(2 * size, 2 * size))
    assert len(set(found.values())) == len(found)
    for i, other in enumerate(partner):
        assert node_of(found[f"cpu-{i}"]) != node_of(found[f"cpu-{other}"])


def test_the_gpus_that_a_cluster_lacks_are_named() -> None:
    wanted = plan(gpu("cpu-0"), gpu("cpu-1"), gpu("cpu-5"), gpu("cpu-6", selector={"zone": "a"}))
    assert missing_gpus(wanted, nodes(2, zone="b")) == (wanted.gpus[2], wanted.gpus[3])
    assert missing_gpus(wanted, nodes(2, 2, zone="a")) == ()


def test_numbers_above_the_count_are_devices_all_the_same_where_nodes_come_and_go() -> None:
    assert map_devices(plan(gpu("cpu-7")), nodes(1)) == {"cpu-7": "n0/cpu-0"}
    with pytest.raises(InputError):
        map_devices(plan(gpu("cpu-7"), gpu("cpu-8")), nodes(1))


def test_fewer_gpus_leave_whole_nodes() -> None:
    known = {"cpu-0": "n0/cpu-0", "cpu-1": "n0/cpu-1", "cpu-2": "n1/cpu-0", "cpu-3": "n1/cpu-1"}
    one_of_each = plan(gpu("cpu-1"), gpu("cpu-2"))
    found = packed_devices(one_of_each, nodes(2, 2), known)
    assert len({node_of(device) for device in found.values()}) == 1
    three = plan(gpu("cpu-1"), gpu("cpu-2"), gpu("cpu-3"))
    assert packed_devices(three, nodes(2, 2), known) == {
        name: known[name] for name in ("cpu-1", "cpu-2", "cpu-3")
    }
    two = plan(gpu("cpu-0"), gpu("cpu-1"))
    assert packed_devices(two, nodes(2, 2), known) == {name: known[name] for name in ("cpu-0", "cpu-1")}
    apart = plan(gpu("cpu-1", "cpu-2"), gpu("cpu-2"))
    assert len({node_of(device) for device in packed_devices(apart, nodes(2, 2), known).values()}) == 2
