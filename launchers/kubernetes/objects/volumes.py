"""Volumes of a server's pod: rendered files, the models' versions, and writable memory."""

from __future__ import annotations

from lightkube.models.core_v1 import (
    ConfigMapVolumeSource,
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    ImageVolumeSource,
    PersistentVolumeClaimVolumeSource,
    Volume,
    VolumeMount,
)

from controlplane.domain.errors import InputError
from launchers.kubernetes.options import MODELS, ModelVolume, VolumeKind
from launchers.kubernetes.repository import RenderedFiles

REPOSITORY = "/models"
"""The rendered repository in a pod."""
_CONFIGS = "configs"
_SOURCE = "models"


def config_key(path: str) -> str:
    """Return a path as the key of a ConfigMap, which may not contain '/'. No name contains '..'."""
    return path.replace("/", "..")


def of_models(
    files: RenderedFiles, config_map: str, source: ModelVolume | None
) -> tuple[list[Volume], list[VolumeMount]]:
    """Return the volumes and mounts that compose the rendered repository; no version is copied.

    Each file and each version is a mount of its own: Kubernetes follows no link out of a volume. Raises
    InputError for links without a volume that holds what they lead to.
    """
    volumes = [Volume(name=_CONFIGS, configMap=ConfigMapVolumeSource(name=config_map))]
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


def of_memory(*, shared: bool) -> tuple[list[Volume], list[VolumeMount]]:
    """Return /tmp, and with `shared` the pod's own /dev/shm: the only writable folders."""
    wanted = {"tmp": "/tmp", **({"shm": "/dev/shm"} if shared else {})}
    volumes = [
        Volume(
            name=name,
            emptyDir=EmptyDirVolumeSource(medium="Memory" if name == "shm" else None, sizeLimit="1Gi"),
        )
        for name in wanted
    ]
    return volumes, [VolumeMount(name=name, mountPath=path) for name, path in wanted.items()]


def _mount(volume: str, path: str, inside: str) -> VolumeMount:
    return VolumeMount(name=volume, mountPath=f"{REPOSITORY}/{path}", subPath=inside, readOnly=True)


def _volume(source: ModelVolume) -> Volume:
    match source.kind:
        case VolumeKind.CLAIM:
            claim = PersistentVolumeClaimVolumeSource(claimName=source.source, readOnly=True)
            return Volume(name=_SOURCE, persistentVolumeClaim=claim)
        case VolumeKind.IMAGE:
            return Volume(name=_SOURCE, image=ImageVolumeSource(reference=source.source))
        case VolumeKind.HOST:
            return Volume(name=_SOURCE, hostPath=HostPathVolumeSource(path=source.source, type="Directory"))
