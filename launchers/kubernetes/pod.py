"""The pod of one server, as a value: its container, its volumes and its share of a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lightkube.models import core_v1 as core
from lightkube.models import resource_v1 as resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod
from lightkube.resources.resource_v1 import ResourceClaim

from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Role, Server, ServerSpec
from launchers.gpu.control import PIPES
from launchers.gpu.mps import share_variables
from launchers.kubernetes import names
from launchers.kubernetes.files import RenderedFiles, config_key
from launchers.kubernetes.options import MODELS, ModelVolume, PodOptions, VolumeKind
from launchers.triton import labels, program

DRIVER = "gpu.nvidia.com"
DAEMON_FOLDER = "/run/trisect/mps"
"""On a node, DAEMON_FOLDER/<UUID> holds the folders `pipe` and `shm` of a GPU's daemon."""
_REQUEST = "gpu"
_PIPE = "/run/mps"


@dataclass(frozen=True, slots=True)
class GpuAccess:
    """What gives a pod its GPU. `environment` and the rest are parts of its container or its spec."""

    environment: dict[str, str]
    volumes: list[core.Volume] = field(default_factory=list)
    mounts: list[core.VolumeMount] = field(default_factory=list)
    claims: list[core.PodResourceClaim] = field(default_factory=list)
    requests: list[core.ResourceClaim] = field(default_factory=list)


def by_daemon(uuid: str) -> GpuAccess:
    """Return the access to a GPU whose MPS daemon has its folders on the node."""
    folder = f"{DAEMON_FOLDER}/{uuid}"
    paths = {"mps-pipe": (f"{folder}/pipe", _PIPE), "mps-shm": (f"{folder}/shm", "/dev/shm")}
    return GpuAccess(
        environment={"NVIDIA_VISIBLE_DEVICES": uuid, PIPES: _PIPE},
        # A missing folder is a missing daemon: the pod must not make it.
        volumes=[
            core.Volume(name=name, hostPath=core.HostPathVolumeSource(path=path, type="Directory"))
            for name, (path, _) in paths.items()
        ],
        mounts=[core.VolumeMount(name=name, mountPath=place) for name, (_, place) in paths.items()],
    )


def by_claim(uuid: str) -> GpuAccess:
    """Return the access to a GPU by its shared claim; the driver adds pipe and shared memory."""
    return GpuAccess(
        environment={},
        claims=[core.PodResourceClaim(name=_REQUEST, resourceClaimName=claim_name(uuid))],
        requests=[core.ResourceClaim(name=_REQUEST)],
    )


def claim_name(uuid: str) -> str:
    """Return the name of a GPU's claim."""
    return names.object_name("gpu", uuid)


def shared_claim(uuid: str) -> ResourceClaim:
    """Return the one claim of a GPU for all its pods: their own percentages lower the daemon's 100 %.

    The driver's daemon is root's, in a folder where only root writes: an MPS server for our pods' user cannot
    start there, and with `multiUser` it is root's (kubernetes-sigs/dra-driver-nvidia-gpu#1153).
    """
    mps = {"defaultActiveThreadPercentage": 100, "multiUser": True}
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "MPS", "mpsConfig": mps},
    }
    select = f'device.attributes["{DRIVER}"].uuid == "{uuid}"'
    exactly = resource.ExactDeviceRequest(
        deviceClassName=DRIVER,
        selectors=[resource.DeviceSelector(cel=resource.CELDeviceSelector(expression=select))],
    )
    config = resource.DeviceClaimConfiguration(
        requests=[_REQUEST], opaque=resource.OpaqueDeviceConfiguration(driver=DRIVER, parameters=parameters)
    )
    return ResourceClaim(
        metadata=ObjectMeta(name=claim_name(uuid), labels={names.MANAGED_BY: names.MANAGER}),
        spec=resource.ResourceClaimSpec(
            devices=resource.DeviceClaim(
                requests=[resource.DeviceRequest(name=_REQUEST, exactly=exactly)], config=[config]
            )
        ),
    )


REPOSITORY = "/models"
"""The rendered repository in a pod."""
_CONFIGS = "configs"
_SOURCE = "models"


def volumes_of_models(
    files: RenderedFiles, config_map: str, source: ModelVolume | None
) -> tuple[list[core.Volume], list[core.VolumeMount]]:
    """Return the volumes and mounts that compose the rendered repository; no version is copied.

    Each file and each version is a mount of its own: Kubernetes follows no link out of a volume. Raises
    InputError for links without a volume that holds what they lead to.
    """
    volumes = [core.Volume(name=_CONFIGS, configMap=core.ConfigMapVolumeSource(name=config_map))]
    mounts = [_mount(_CONFIGS, path, config_key(path)) for path in sorted(files.texts)]
    if files.links:
        if source is None:
            raise InputError(
                "the models' versions are not in the cluster yet: name the volume that holds the model "
                "repository, as pvc:NAME, image:REFERENCE or host:/PATH",
                field=f"${MODELS}",
            )
        volumes.append(_volume(source))
        mounts += [_mount(_SOURCE, path, target) for path, target in sorted(files.links.items())]
    return volumes, mounts


def volumes_of_memory(*, shared: bool) -> tuple[list[core.Volume], list[core.VolumeMount]]:
    """Return /tmp, and with `shared` the pod's own /dev/shm: the only writable folders."""
    wanted = {"tmp": "/tmp", **({"shm": "/dev/shm"} if shared else {})}
    volumes = [
        core.Volume(
            name=name,
            emptyDir=core.EmptyDirVolumeSource(medium="Memory" if name == "shm" else None, sizeLimit="1Gi"),
        )
        for name in wanted
    ]
    return volumes, [core.VolumeMount(name=name, mountPath=path) for name, path in wanted.items()]


def _mount(volume: str, path: str, inside: str) -> core.VolumeMount:
    return core.VolumeMount(name=volume, mountPath=f"{REPOSITORY}/{path}", subPath=inside, readOnly=True)


def _volume(source: ModelVolume) -> core.Volume:
    match source.kind:
        case VolumeKind.CLAIM:
            claim = core.PersistentVolumeClaimVolumeSource(claimName=source.source, readOnly=True)
            return core.Volume(name=_SOURCE, persistentVolumeClaim=claim)
        case VolumeKind.IMAGE:
            return core.Volume(name=_SOURCE, image=core.ImageVolumeSource(reference=source.source))
        case VolumeKind.HOST:
            return core.Volume(
                name=_SOURCE, hostPath=core.HostPathVolumeSource(path=source.source, type="Directory")
            )


PRE_STOP_S = 2
"""How long a pod that another program deletes still answers, so that routes can move first."""
_DRAIN_S = 30
_STANDBY_CPU = "10m"
GPU_TAINT = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class PodPlace:
    """Where a pod runs: the value of the node's label `kubernetes.io/hostname`, and its GPU, if any."""

    hostname: str
    gpu: GpuAccess | None = None


def pod(server: Server, files: RenderedFiles, place: PodPlace, options: PodOptions) -> Pod:
    """Return the pod of a server: confined as the level `restricted` of the pod security standards asks.

    A GPU's MPS daemon on the node is the exception: its folders are host paths, which that level forbids.
    """
    spec = server.spec
    name = names.server_object(spec)
    model_volumes, model_mounts = volumes_of_models(files, name, options.models)
    memory_volumes, memory_mounts = volumes_of_memory(shared=place.gpu is None or not place.gpu.mounts)
    gpu_volumes, gpu_mounts = (place.gpu.volumes, place.gpu.mounts) if place.gpu else ([], [])
    container = _container(server, place, options, [*model_mounts, *memory_mounts, *gpu_mounts])
    return Pod(
        metadata=ObjectMeta(
            name=name,
            labels=dict(names.server_labels(spec)),
            annotations={names.SERVER: labels.text_of(server)},
        ),
        spec=core.PodSpec(
            containers=[container],
            volumes=[*model_volumes, *memory_volumes, *gpu_volumes],
            # Never nodeName: the scheduler would not see the pod, nor reserve its claims.
            nodeSelector={"kubernetes.io/hostname": place.hostname},
            tolerations=[core.Toleration(key=GPU_TAINT, operator="Exists")] if place.gpu else None,
            resourceClaims=(place.gpu.claims or None) if place.gpu else None,
            restartPolicy="Always",
            # Without an identity in the cluster: a model's code must not reach the API.
            automountServiceAccountToken=False,
            enableServiceLinks=False,
            imagePullSecrets=pull_secrets(options),
            priorityClassName=options.priority_class,
            runtimeClassName=options.runtime_class if place.gpu else None,
            terminationGracePeriodSeconds=PRE_STOP_S + _DRAIN_S,
            securityContext=core.PodSecurityContext(
                runAsNonRoot=True,
                runAsUser=options.user,
                runAsGroup=options.user,
                fsGroup=options.user,
                seccompProfile=core.SeccompProfile(type="RuntimeDefault"),
            ),
        ),
    )


def pull_secrets(options: PodOptions) -> list[core.LocalObjectReference] | None:
    """Return the credentials for the registries of a pod's images."""
    return [core.LocalObjectReference(name=name) for name in options.pull_secrets] or None


def cpu_resources(spec: ServerSpec) -> core.ResourceRequirements:
    """Return a share of a core: the limit, and as much requested, so that no node is promised twice.

    A shadow that stands by counts in memory, not in share: it requests a token amount.
    """
    limit = cpu_quantity(spec.percent)
    request = _STANDBY_CPU if spec.labels.role in (Role.SHADOW, Role.SHARED) else limit
    return core.ResourceRequirements(
        limits={"cpu": limit, **_memory(spec.memory_limit_mb)},
        # What it takes is requested whether or not it is limited, so that a node's memory is shared out once.
        requests={"cpu": request, **_memory(spec.memory_mb or spec.memory_limit_mb)},
    )


def _memory(megabytes: float | None) -> dict[str, str]:
    return {} if megabytes is None else {"memory": f"{round(megabytes)}Mi"}


def cpu_quantity(percent: float) -> str:
    """Return a percentage of one core in Kubernetes' thousandths."""
    return f"{round(percent * 10)}m"


def _container(
    server: Server, place: PodPlace, options: PodOptions, mounts: list[core.VolumeMount]
) -> core.Container:
    spec = server.spec
    within = replace(server, host="0.0.0.0", spec=replace(spec, repository=REPOSITORY))
    home = program.TritonHome(program.IMAGE_HOME)
    command = program.command_line(within, home, gpu=place.gpu is not None)
    if place.gpu is None:
        environment = {**program.MODEL_THREADS, "NVIDIA_VISIBLE_DEVICES": "void"}
        resources = cpu_resources(spec)
    else:
        environment = {**place.gpu.environment, **share_variables(spec)}
        resources = core.ResourceRequirements(claims=place.gpu.requests or None)
    environment |= dict(spec.options.env)
    named = {"http": server.http_port, "grpc": server.grpc_port, "metrics": server.metrics_port}
    return core.Container(
        name=names.CONTAINER,
        image=options.image,
        imagePullPolicy=options.pull_policy,
        # The image's own entry point stays: NVIDIA's finds the driver's libraries.
        args=list(program.in_container(command, gpu=place.gpu is not None)),
        env=[core.EnvVar(name=key, value=value) for key, value in sorted(environment.items())],
        ports=[core.ContainerPort(name=port, containerPort=number) for port, number in named.items()],
        resources=resources,
        resizePolicy=[core.ContainerResizePolicy(resourceName="cpu", restartPolicy="NotRequired")],
        volumeMounts=mounts,
        readinessProbe=_HAS_SHARE if place.gpu else _readiness(spec),
        lifecycle=core.Lifecycle(preStop=core.LifecycleHandler(sleep=core.SleepAction(seconds=PRE_STOP_S))),
        securityContext=core.SecurityContext(
            allowPrivilegeEscalation=False,
            readOnlyRootFilesystem=True,
            capabilities=core.Capabilities(drop=["ALL"]),
        ),
    )


_HAS_SHARE = core.Probe(
    # `ps` has the pid namespace of each client, and a pod has its own.
    exec=core.ExecAction(
        command=[
            "sh",
            "-c",
            "space=$(readlink /proc/self/ns/pid | tr -dc 0-9); "
            "echo ps | CUDA_MPS_PROTOCOL_VERSION=2 nvidia-cuda-mps-control | grep -w $space || "
            "{ echo the MPS daemon lists no client of this pod; exit 1; }",
        ]
    ),
    periodSeconds=1,
    timeoutSeconds=5,
    failureThreshold=3,
)
"""On a GPU a pod is ready while its processes are clients of MPS; its models are asked directly."""


def _readiness(spec: ServerSpec) -> core.Probe:
    """Ask for a model of the server, which loads all of them before it listens.

    By HTTP: a command would run inside the share and cost the model its time. No liveness probe: a server
    that is only busy would be killed, and the guard finds a hung one. A warm shadow has its models unloaded.
    """
    path = "/v2/health/live" if spec.reloads else f"/v2/models/{min(spec.endpoints)}/ready"
    return core.Probe(
        httpGet=core.HTTPGetAction(path=path, port="http"),
        periodSeconds=1,
        timeoutSeconds=2,
        failureThreshold=3,
    )
