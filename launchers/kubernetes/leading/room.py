"""Pods that only wait for a node: what adds nodes to a cluster adds them for pods that fit nowhere.

A server's pod cannot wait itself: it goes to the one node that has its device.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightkube.models import core_v1 as core
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.resources.core_v1 import Node, Pod

from controlplane.domain.device import CPU_DEVICE
from controlplane.domain.plan import PlannedGpu
from launchers.kubernetes import names
from launchers.kubernetes.api import ClusterApi
from launchers.kubernetes.options import PodOptions
from launchers.kubernetes.pod import GPU_TAINT, pull_secrets

_COMPONENT = "room"


class Room:
    """The waiting pods of one fleet. They end with the pod of the controller that made them, `leader`."""

    def __init__(self, api: ClusterApi, fleet: str, leader: str, options: PodOptions) -> None:
        self._api = api
        self._fleet = fleet
        self._leader = leader
        self._options = options
        self._labels = {**names.fleet_labels(fleet), names.COMPONENT: _COMPONENT}

    def wait_for(self, gpus: Sequence[PlannedGpu]) -> None:
        """Have a pod wait for each of these GPUs, and no other. Raises EngineError."""
        wanted = {names.object_name(self._fleet, _COMPONENT, gpu.id): gpu for gpu in gpus}
        present = {names.object_of(pod) for pod in self._api.find(Pod, self._labels)}
        for name in present - wanted.keys():
            self._api.delete(Pod, name, grace_s=0)
        missing = wanted.keys() - present
        if missing:
            nodes = sorted(names.object_of(node) for node in self._api.find(Node))
            # The pods end with the leader's, unless a controller outside of the cluster leads.
            leader = self._api.get(Pod, self._leader)
            uid = leader.metadata.uid if leader is not None and leader.metadata is not None else None
            owner = None
            if uid is not None:
                owner = [OwnerReference(apiVersion="v1", kind="Pod", name=self._leader, uid=uid)]
            for name in sorted(missing):
                metadata = ObjectMeta(name=name, labels=self._labels, ownerReferences=owner)
                self._api.create(waiting_pod(metadata, wanted[name], nodes, self._options))


def waiting_pod(metadata: ObjectMeta, gpu: PlannedGpu, nodes: Sequence[str], options: PodOptions) -> Pod:
    """Return a pod that asks for a whole device of a node that is not there yet."""
    is_core = gpu.type == CPU_DEVICE
    # The device is what is wanted, not room beside shares of others, which Kubernetes would give.
    # A requirement for a field takes one value.
    elsewhere = [
        core.NodeSelectorRequirement(key="metadata.name", operator="NotIn", values=[node]) for node in nodes
    ]
    required = core.NodeSelector(nodeSelectorTerms=[core.NodeSelectorTerm(matchFields=elsewhere)])
    container = core.Container(
        name=_COMPONENT,
        image=options.image,
        imagePullPolicy=options.pull_policy,
        command=["sleep", "infinity"],
        resources=core.ResourceRequirements(
            requests={"cpu": "1"} if is_core else None,
            limits=None if is_core else {GPU_TAINT: "1"},
        ),
        securityContext=core.SecurityContext(
            allowPrivilegeEscalation=False, capabilities=core.Capabilities(drop=["ALL"])
        ),
    )
    return Pod(
        metadata=metadata,
        spec=core.PodSpec(
            containers=[container],
            affinity=core.Affinity(
                nodeAffinity=core.NodeAffinity(requiredDuringSchedulingIgnoredDuringExecution=required)
            ),
            nodeSelector=dict(gpu.node_selector) or None,
            tolerations=None if is_core else [core.Toleration(key=GPU_TAINT, operator="Exists")],
            imagePullSecrets=pull_secrets(options),
            priorityClassName=options.priority_class,
            automountServiceAccountToken=False,
            terminationGracePeriodSeconds=0,
            securityContext=core.PodSecurityContext(
                runAsNonRoot=True,
                runAsUser=options.user,
                seccompProfile=core.SeccompProfile(type="RuntimeDefault"),
            ),
        ),
    )
