"""A share of a GPU in a pod: a client of the GPU's MPS daemon.

No component of Kubernetes gives pods unequal shares of one GPU. An MPS daemon at 100 % does: each client
lowers its own percentage. The daemon is a DaemonSet's, with its folders on the node, or the GPU driver's for
dynamic resource allocation (DRA), behind one ResourceClaim for each GPU that all its pods share.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lightkube.models.core_v1 import (
    HostPathVolumeSource,
    PodResourceClaim,
    ResourceClaim,
    Volume,
    VolumeMount,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.resource_v1 import (
    CELDeviceSelector,
    DeviceClaim,
    DeviceClaimConfiguration,
    DeviceRequest,
    DeviceSelector,
    ExactDeviceRequest,
    OpaqueDeviceConfiguration,
    ResourceClaimSpec,
)
from lightkube.resources.resource_v1 import ResourceClaim as ResourceClaimObject

from launchers.kubernetes import names

DRIVER = "gpu.nvidia.com"
DAEMON_FOLDER = "/run/trisect/mps"
"""On a node, DAEMON_FOLDER/<UUID> holds the folders `pipe` and `shm` of a GPU's daemon."""
_REQUEST = "gpu"
_PIPE = "/run/mps"


@dataclass(frozen=True, slots=True)
class GpuAccess:
    """What gives a pod its GPU. `environment` and the rest are parts of its container or its spec."""

    environment: dict[str, str]
    volumes: list[Volume] = field(default_factory=list)
    mounts: list[VolumeMount] = field(default_factory=list)
    claims: list[PodResourceClaim] = field(default_factory=list)
    requests: list[ResourceClaim] = field(default_factory=list)


def by_daemon(uuid: str) -> GpuAccess:
    """Return the access to a GPU whose MPS daemon has its folders on the node."""
    folder = f"{DAEMON_FOLDER}/{uuid}"
    paths = {"mps-pipe": (f"{folder}/pipe", _PIPE), "mps-shm": (f"{folder}/shm", "/dev/shm")}
    return GpuAccess(
        environment={"NVIDIA_VISIBLE_DEVICES": uuid, "CUDA_MPS_PIPE_DIRECTORY": _PIPE},
        # A missing folder is a missing daemon: the pod must not make it.
        volumes=[
            Volume(name=name, hostPath=HostPathVolumeSource(path=path, type="Directory"))
            for name, (path, _) in paths.items()
        ],
        mounts=[VolumeMount(name=name, mountPath=place) for name, (_, place) in paths.items()],
    )


def by_claim(uuid: str) -> GpuAccess:
    """Return the access to a GPU by its shared claim; the driver adds pipe and shared memory."""
    return GpuAccess(
        environment={},
        claims=[PodResourceClaim(name=_REQUEST, resourceClaimName=claim_name(uuid))],
        requests=[ResourceClaim(name=_REQUEST)],
    )


def claim_name(uuid: str) -> str:
    """Return the name of a GPU's claim."""
    return names.object_name("gpu", uuid)


def shared_claim(uuid: str) -> ResourceClaimObject:
    """Return the one claim of a GPU for all its pods: their own percentages lower the daemon's 100 %."""
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 100}},
    }
    select = f'device.attributes["{DRIVER}"].uuid == "{uuid}"'
    exactly = ExactDeviceRequest(
        deviceClassName=DRIVER, selectors=[DeviceSelector(cel=CELDeviceSelector(expression=select))]
    )
    config = DeviceClaimConfiguration(
        requests=[_REQUEST], opaque=OpaqueDeviceConfiguration(driver=DRIVER, parameters=parameters)
    )
    return ResourceClaimObject(
        metadata=ObjectMeta(name=claim_name(uuid), labels={names.MANAGED_BY: names.MANAGER}),
        spec=ResourceClaimSpec(
            devices=DeviceClaim(requests=[DeviceRequest(name=_REQUEST, exactly=exactly)], config=[config])
        ),
    )
