"""Devices of a cluster: `NODE/cpu-0` is a core of a node, `NODE/GPU-...` a GPU by its UUID."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lightkube.resources.core_v1 import Node, Pod
from lightkube.resources.resource_v1 import ResourceSlice

from controlplane.domain.device import CPU_DEVICE, HeldDevice
from controlplane.domain.errors import InputError
from controlplane.domain.fleet import ServerSpec
from launchers.gpu.gpus import check_shares, is_gpu
from launchers.kubernetes import names
from launchers.kubernetes.api import ClusterApi, Gone
from launchers.kubernetes.pod import DRIVER, GPU_TAINT, PodPlace, by_claim, by_daemon, shared_claim
from launchers.kubernetes.pods import PodState

_CORE = re.compile(r"cpu-\d+")
_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """A device of one node. `device` is `cpu-0` or a GPU's UUID."""

    node: str
    device: str

    @classmethod
    def parse(cls, text: str) -> NodeDevice:
        """Return the device that a spec names. Raises InputError."""
        node, _, device = text.partition("/")
        if not node or not (_CORE.fullmatch(device) or is_gpu(device)):
            raise InputError(
                f"{text!r} is no device of a cluster: write NODE/cpu-0 or NODE/GPU-...", field="device"
            )
        return cls(node, device)

    @property
    def gpu(self) -> bool:
        """Whether it is a GPU."""
        return is_gpu(self.device)


def placement(api: ClusterApi, spec: ServerSpec, *, make: bool) -> PodPlace:
    """Return where a server's pod runs; with `make`, make the shared claim of its GPU.

    Raises InputError for a device that the cluster does not have, or whose active shares exceed 100 %.
    """
    device = NodeDevice.parse(spec.device)
    node = api.get(Node, device.node)
    if node is None:
        known = ", ".join(sorted(names.object_of(one) for one in api.find(Node))) or "none"
        raise InputError(f"the cluster has no node {device.node!r}; it has: {known}", field="device")
    hostname = dict(_labels(node)).get("kubernetes.io/hostname", device.node)
    if not device.gpu:
        # Kubernetes pins nothing: the number only tells shares of different cores apart.
        if int(device.device.removeprefix(f"{CPU_DEVICE}-")) >= cores(node):
            raise InputError(
                f"node {device.node} has {cores(node)} cores, no {device.device}", field="device"
            )
        return PodPlace(hostname)
    # Beside our servers in the namespace, of any fleet.
    pods = map(PodState, api.find(Pod, {names.MANAGED_BY: names.MANAGER, names.COMPONENT: "server"}))
    check_shares(spec, [one.server.spec for one in pods if one.is_ours])
    if device not in {found for _, found in sliced_gpus(api)}:
        return PodPlace(hostname, by_daemon(device.device))
    if make:
        api.apply(shared_claim(device.device))
    return PodPlace(hostname, by_claim(device.device))


def inventory(api: ClusterApi) -> tuple[HeldDevice, ...]:
    """Return the devices of all nodes that take pods when they are ready: their cores, then all GPUs."""
    found = sorted(filter(_takes_pods, api.find(Node)), key=names.object_of)
    of_nodes = {names.object_of(node): node for node in found}
    cpus = [
        HeldDevice(CPU_DEVICE, f"{name}/{CPU_DEVICE}-{core}", name, _labels(node), _is_lost(node))
        for name, node in of_nodes.items()
        for core in range(cores(node))
    ]
    gpus = [
        HeldDevice(product, f"{device.node}/{device.device}", device.node, _labels(node), _is_lost(node))
        for product, device in sliced_gpus(api)
        if (node := of_nodes.get(device.node)) is not None
    ]
    return (*cpus, *gpus)


def _labels(node: Node) -> tuple[tuple[str, str], ...]:
    return tuple(((node.metadata.labels if node.metadata else None) or {}).items())


def _takes_pods(node: Node) -> bool:
    """Return whether a node is not cordoned, and without taints of its own that our pods do not tolerate."""
    cordoned = node.spec is not None and node.spec.unschedulable
    return not cordoned and all(taint == GPU_TAINT or taint in _LOST for taint in _taints(node))


def _is_lost(node: Node) -> bool:
    """Return whether a node is not ready, or still has the taint of one that was not."""
    conditions = (node.status.conditions if node.status is not None else None) or []
    ready = [c.status for c in conditions if c.type == "Ready"] == ["True"]
    return not ready or any(taint in _LOST for taint in _taints(node))


def _taints(node: Node) -> list[str]:
    """Return the keys of the taints that keep pods away."""
    found = (node.spec.taints if node.spec is not None else None) or []
    return [taint.key for taint in found if taint.effect != "PreferNoSchedule"]


def cores(node: Node) -> int:
    """Return how many whole cores a node gives to pods."""
    told = str(((node.status.allocatable if node.status else None) or {}).get("cpu", "0"))
    return int(told.removesuffix("m")) // 1000 if told.endswith("m") else int(float(told))


def sliced_gpus(api: ClusterApi) -> list[tuple[str, NodeDevice]]:
    """Return product and device of each GPU in ResourceSlices; none without dynamic allocation."""
    try:
        slices = api.find(ResourceSlice)
    except Gone:
        return []  # a cluster before 1.34
    found = []
    for one in slices:
        if one.spec is None or one.spec.driver != DRIVER or not one.spec.nodeName:
            continue
        for device in one.spec.devices or []:
            told = {key: value.get("string") for key, value in (device.attributes or {}).items()}
            uuid = told.get("uuid")
            if told.get("type") == "gpu" and uuid:
                found.append((told.get("productName") or "", NodeDevice(one.spec.nodeName, uuid)))
    return sorted(found, key=lambda pair: (pair[1].node, pair[1].device))
