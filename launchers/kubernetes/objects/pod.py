"""The pod of one server."""

from __future__ import annotations

from dataclasses import dataclass

from lightkube.models.core_v1 import (
    Capabilities,
    Container,
    ContainerPort,
    ContainerResizePolicy,
    EnvVar,
    HTTPGetAction,
    Lifecycle,
    LifecycleHandler,
    PodSecurityContext,
    PodSpec,
    Probe,
    ResourceRequirements,
    SeccompProfile,
    SecurityContext,
    SleepAction,
    Toleration,
    VolumeMount,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod

from controlplane.domain.fleet import Role, Server, ServerSpec
from launchers.kubernetes import names
from launchers.kubernetes.objects import gpu as gpus
from launchers.kubernetes.objects import volumes
from launchers.kubernetes.options import PodOptions
from launchers.kubernetes.repository import RenderedFiles
from launchers.triton import labels, program

PORTS = program.ServerPorts(8000, 8001, 8002, "0.0.0.0")
PRE_STOP_S = 2
"""How long a pod that another program deletes still answers, so that routes can move first."""
_DRAIN_S = 30
_STANDBY_CPU = "10m"
GPU_TAINT = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pod runs: the value of the node's label `kubernetes.io/hostname`, and its GPU, if any."""

    hostname: str
    gpu: gpus.GpuAccess | None = None


def pod(server: Server, files: RenderedFiles, place: Placement, options: PodOptions) -> Pod:
    """Return the pod of a server: confined as the level `restricted` of the pod security standards asks.

    A GPU's MPS daemon on the node is the exception: its folders are host paths, which that level forbids.
    """
    spec = server.spec
    name = names.server_object(spec)
    model_volumes, model_mounts = volumes.of_models(files, name, options.models)
    memory_volumes, memory_mounts = volumes.of_memory(shared=place.gpu is None or not place.gpu.mounts)
    gpu_volumes, gpu_mounts = (place.gpu.volumes, place.gpu.mounts) if place.gpu else ([], [])
    container = _container(server, place, options, [*model_mounts, *memory_mounts, *gpu_mounts])
    return Pod(
        metadata=ObjectMeta(
            name=name,
            labels=dict(names.server_labels(spec)),
            annotations={names.SERVER: labels.text_of(server)},
        ),
        spec=PodSpec(
            containers=[container],
            volumes=[*model_volumes, *memory_volumes, *gpu_volumes],
            # Never nodeName: the scheduler would not see the pod, nor reserve its claims.
            nodeSelector={"kubernetes.io/hostname": place.hostname},
            tolerations=[Toleration(key=GPU_TAINT, operator="Exists")] if place.gpu else None,
            resourceClaims=(place.gpu.claims or None) if place.gpu else None,
            restartPolicy="Always",
            # Without an identity in the cluster: a model's code must not reach the API.
            automountServiceAccountToken=False,
            enableServiceLinks=False,
            priorityClassName=options.priority_class,
            runtimeClassName=options.runtime_class if place.gpu else None,
            terminationGracePeriodSeconds=PRE_STOP_S + _DRAIN_S,
            securityContext=PodSecurityContext(
                runAsNonRoot=True,
                runAsUser=options.user,
                runAsGroup=options.user,
                fsGroup=options.user,
                seccompProfile=SeccompProfile(type="RuntimeDefault"),
            ),
        ),
    )


def cpu_resources(spec: ServerSpec) -> ResourceRequirements:
    """Return a share of a core: the limit, and as much requested, so that no node is promised twice.

    A shadow that stands by counts in memory, not in share: it requests a token amount.
    """
    limit = cpu_quantity(spec.percent)
    request = _STANDBY_CPU if spec.labels.role is Role.SHADOW else limit
    return ResourceRequirements(
        limits={"cpu": limit, **_memory(spec.memory_limit_mb)},
        # What it takes is requested whether or not it is limited, so that a node's memory is shared out once.
        requests={"cpu": request, **_memory(spec.memory_mb or spec.memory_limit_mb)},
    )


def _memory(megabytes: float | None) -> dict[str, str]:
    return {} if megabytes is None else {"memory": f"{round(megabytes)}Mi"}


def cpu_quantity(percent: float) -> str:
    """Return a percentage of one core in Kubernetes' thousandths."""
    return f"{round(percent * 10)}m"


def _container(server: Server, place: Placement, options: PodOptions, mounts: list[VolumeMount]) -> Container:
    spec = server.spec
    command = program.command_line(
        spec,
        program.TritonHome(program.IMAGE_HOME),
        PORTS,
        repository=volumes.REPOSITORY,
        gpu=place.gpu is not None,
        reload_key=server.reload_key,
    )
    if place.gpu is None:
        environment = {**program.MODEL_THREADS, "NVIDIA_VISIBLE_DEVICES": "void"}
        resources = cpu_resources(spec)
    else:
        environment = {**place.gpu.environment, **_share_of_gpu(spec)}
        resources = ResourceRequirements(claims=place.gpu.requests or None)
    environment |= dict(spec.options.env)
    named = {"http": PORTS.http, "grpc": PORTS.grpc, "metrics": PORTS.metrics}
    return Container(
        name=names.CONTAINER,
        image=options.image,
        imagePullPolicy=options.pull_policy,
        # The image's own entry point stays: NVIDIA's finds the driver's libraries.
        args=list(program.in_container(command)),
        env=[EnvVar(name=key, value=value) for key, value in sorted(environment.items())],
        ports=[ContainerPort(name=port, containerPort=number) for port, number in named.items()],
        resources=resources,
        resizePolicy=[ContainerResizePolicy(resourceName="cpu", restartPolicy="NotRequired")],
        volumeMounts=mounts,
        readinessProbe=_readiness(spec),
        lifecycle=Lifecycle(preStop=LifecycleHandler(sleep=SleepAction(seconds=PRE_STOP_S))),
        securityContext=SecurityContext(
            allowPrivilegeEscalation=False,
            readOnlyRootFilesystem=True,
            capabilities=Capabilities(drop=["ALL"]),
        ),
    )


def _share_of_gpu(spec: ServerSpec) -> dict[str, str]:
    share = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{spec.percent:g}"}
    if spec.memory_limit_mb is not None:
        share["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={round(spec.memory_limit_mb)}M"
    return share


def _readiness(spec: ServerSpec) -> Probe:
    """Ask for a model of the server, which loads all of them before it listens.

    By HTTP: a command would run inside the share and cost the model its time. No liveness probe: a server
    that is only busy would be killed, and the guard finds a hung one. A warm shadow has its models unloaded.
    """
    path = "/v2/health/live" if spec.reloads else f"/v2/models/{min(spec.endpoints)}/ready"
    return Probe(
        httpGet=HTTPGetAction(path=path, port="http"),
        periodSeconds=1,
        timeoutSeconds=2,
        failureThreshold=3,
    )
