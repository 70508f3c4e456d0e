"""The state of a server's pod, and in words why it ended or does not start. Pure."""

from __future__ import annotations

from dataclasses import replace

from lightkube.models.core_v1 import ContainerStateTerminated, ContainerStatus
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod

from controlplane.domain.fleet import Server, ServerState
from controlplane.domain.observation import OUT_OF_MEMORY, Health, out_of_memory
from launchers.kubernetes import names
from launchers.triton import labels

_HOPELESS = {
    "ErrImageNeverPull": "the node has no such image, and it may not be pulled",
    "ImagePullBackOff": "its image cannot be pulled",
    "InvalidImageName": "its image has an invalid name",
    "CreateContainerConfigError": "its container cannot be configured",
    "CreateContainerError": "its container cannot be made",
    "RunContainerError": "its container cannot be started",
}
"""Reasons for which a container waits, and which time does not mend."""
OOM = f"{OUT_OF_MEMORY}: the kernel killed it; see its memory limit (memory_mb)"


def uid(pod: Pod) -> str:
    """Return what tells a pod from another one of its name."""
    return _metadata(pod).uid or ""


def version(pod: Pod) -> str | None:
    """Return the version from which a watch may continue."""
    return _metadata(pod).resourceVersion


def is_leaving(pod: Pod) -> bool:
    """Return whether a pod is being deleted."""
    return _metadata(pod).deletionTimestamp is not None


def is_ours(pod: Pod) -> bool:
    """Return whether a pod describes a server."""
    return names.SERVER in (_metadata(pod).annotations or {})


def server_of(pod: Pod) -> Server:
    """Return the server that a pod describes; its address is the pod's."""
    metadata, why = _metadata(pod), end(pod)
    state = ServerState.EXITED if health(pod) is Health.GONE or not _runs(pod) else ServerState.RUNNING
    found = labels.server_of((metadata.annotations or {})[names.SERVER], id=metadata.uid or "", state=state)
    why = None if why is None else why.replace(OOM, out_of_memory(found))
    return replace(found, host=_address(pod), end=why)


def health(pod: Pod) -> Health:
    """Return whether a server has ended, is about to, or (`READY`) neither."""
    if end(pod) is None:
        return Health.READY
    # Its container runs on for `PRE_STOP_S`, then until Triton has drained.
    return Health.ENDING if is_leaving(pod) and _runs(pod) else Health.GONE


def is_ready(pod: Pod) -> bool:
    """Return whether a pod runs, answers and has an address."""
    conditions = (pod.status.conditions if pod.status else None) or []
    return (
        end(pod) is None
        and bool(_address(pod))
        and any(c.type == "Ready" and c.status == "True" for c in conditions)
    )


def end(pod: Pod) -> str | None:
    """Return why a server ended or is about to; None while it runs or is on its way."""
    status = pod.status
    if status is None:
        return None
    if status.phase in ("Failed", "Succeeded"):
        why = f"{status.reason}: {status.message}" if status.reason else "its containers ended"
        return f"its pod ended ({why}){_container_end(pod)}"
    if is_leaving(pod):
        return f"its pod ended: it is being deleted{_disruption(pod)}"
    container = container_status(pod)
    if container is not None and container.state is not None and container.state.terminated is not None:
        return ended(container.state.terminated)
    if container is not None and container.state is not None and container.state.waiting is not None:
        last = container.lastState.terminated if container.lastState is not None else None
        return ended(last) if last is not None else None
    return None


def ended(state: ContainerStateTerminated) -> str:
    """Return a container's end in words."""
    why = OOM if state.reason == "OOMKilled" else f"exit code {state.exitCode}"
    return f"its container ended: {why}"


def obstacle(pod: Pod) -> str | None:
    """Return why a pod that starts will never be ready; None where it may."""
    found = end(pod)
    if found is not None:
        return found
    container = container_status(pod)
    if container is None:
        return None
    if (container.restartCount or 0) > 0 and container.lastState and container.lastState.terminated:
        return ended(container.lastState.terminated)
    waiting = container.state.waiting if container.state is not None else None
    if waiting is not None and waiting.reason in _HOPELESS:
        return f"{_HOPELESS[waiting.reason]} ({waiting.reason}: {waiting.message or container.image})"
    return None


def unplaced(pod: Pod) -> str | None:
    """Return why the scheduler places a pod nowhere; None for one that it has placed or not looked at."""
    for condition in (pod.status.conditions if pod.status else None) or []:
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"no node takes it: {condition.message}"
    return None


def way_out(refusal: str) -> str:
    """Return what helps against a refusal of the scheduler; empty where only its own words do."""
    if "Insufficient cpu" not in refusal:
        return ""
    return (
        "; a server that replaces another one needs its share beside it until the requests have moved: free "
        "cores of the node, or plan smaller shares there first"
    )


def waits_for(pod: Pod) -> str | None:
    """Return what a pod that is not ready waits for, as far as the cluster says it."""
    if (refusal := unplaced(pod)) is not None:
        return refusal
    container = container_status(pod)
    waiting = container.state.waiting if container is not None and container.state is not None else None
    return f"{waiting.reason}: {waiting.message or ''}".strip(": ") if waiting is not None else None


def resize_left(pod: Pod, limit: str) -> str | None:
    """Return why a container has not this CPU limit yet; None once it has."""
    container = container_status(pod)
    held = (container.resources.limits if container is not None and container.resources else None) or {}
    if held.get("cpu") == limit:
        return None
    for condition in (pod.status.conditions if pod.status else None) or []:
        if condition.type in ("PodResizePending", "PodResizeInProgress") and condition.status == "True":
            return f"{condition.reason or condition.type}: {condition.message or 'no reason given'}"
    return "the kubelet has not applied it"


def restarts(pod: Pod) -> int:
    """Return how often the kubelet restarted the container."""
    container = container_status(pod)
    return int(container.restartCount or 0) if container is not None else 0


def last_end(pod: Pod) -> str:
    """Return why the run before the present one ended."""
    container = container_status(pod)
    last = container.lastState.terminated if container is not None and container.lastState else None
    return ended(last) if last is not None else "its container ended"


def container_status(pod: Pod) -> ContainerStatus | None:
    """Return the status of Triton's container, once there is one."""
    statuses = (pod.status.containerStatuses if pod.status else None) or []
    return next((s for s in statuses if s.name == names.CONTAINER), None)


def _runs(pod: Pod) -> bool:
    container = container_status(pod)
    running = container is not None and container.state is not None and container.state.running is not None
    return running and bool(_address(pod))


def _container_end(pod: Pod) -> str:
    container = container_status(pod)
    state = container.state.terminated if container is not None and container.state is not None else None
    return f": {ended(state)}" if state is not None else ""


def _disruption(pod: Pod) -> str:
    for condition in (pod.status.conditions if pod.status else None) or []:
        if condition.type == "DisruptionTarget" and condition.status == "True":
            return f" ({condition.reason}: {condition.message})"
    return ""


def _address(pod: Pod) -> str:
    return (pod.status.podIP if pod.status else None) or ""


def _metadata(pod: Pod) -> ObjectMeta:
    return pod.metadata or ObjectMeta()
