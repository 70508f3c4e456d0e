"""The settings of all pods of a launcher."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum

from controlplane.domain.errors import InputError
from launchers.triton.program import VENDOR_IMAGE

MODELS = "TRISECT_MODELS"

_PULL_POLICIES = {"missing": "IfNotPresent", "always": "Always", "never": "Never"}
_BUCKETS = ("s3", "gs", "as")
"""Schemes of repositories that Triton reads itself, each with versions and configuration in one place."""
_OBJECT_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class VolumeKind(StrEnum):
    """What holds the model repository in the cluster."""

    CLAIM = "pvc"
    """A PersistentVolumeClaim of the namespace."""
    IMAGE = "image"
    """An OCI image or artifact, mounted as a volume."""
    HOST = "host"
    """A folder of every node."""


@dataclass(frozen=True, slots=True)
class ModelVolume:
    """The volume with the model repository at its root: one folder for each model.

    `source` is a claim's name, an image's reference, or a folder's absolute path.
    """

    kind: VolumeKind
    source: str

    @classmethod
    def parse(cls, text: str) -> ModelVolume:
        """Return the volume of $TRISECT_MODELS. Raises InputError."""
        kind, _, source = text.partition(":")
        if kind in _BUCKETS:
            raise InputError(
                f"{text!r} is a bucket, in which Triton would look for the configuration too, and each plan "
                "has its own: mount the bucket as a claim by its provider's CSI driver, and write pvc:NAME",
                field=f"${MODELS}",
            )
        legal = {
            VolumeKind.CLAIM: _OBJECT_NAME.fullmatch(source) is not None,
            VolumeKind.IMAGE: bool(source) and " " not in source,
            VolumeKind.HOST: source.startswith("/"),
        }
        if kind not in legal or not legal[VolumeKind(kind)]:
            raise InputError(
                f"{text!r} names no volume: write pvc:NAME, image:REFERENCE or host:/ABSOLUTE/PATH",
                field=f"${MODELS}",
            )
        return cls(VolumeKind(kind), source)


@dataclass(frozen=True, slots=True)
class PodOptions:
    """The settings of all pods of a launcher. `pull_policy` is one of Kubernetes' own.

    `priority_class`, `runtime_class` and `pull_secrets` name objects of the cluster. A daemon of MPS serves
    one user, so all pods run as `user`.
    """

    image: str = VENDOR_IMAGE
    pull_policy: str = "IfNotPresent"
    models: ModelVolume | None = None
    priority_class: str | None = None
    runtime_class: str | None = None
    pull_secrets: tuple[str, ...] = ()
    user: int = 1000

    @classmethod
    def from_environment(cls) -> PodOptions:
        """Read $TRISECT_IMAGE, _PULL, _PULL_SECRETS, _MODELS, _PRIORITY_CLASS and _RUNTIME_CLASS.

        From the environment, so that the controller which an apply leaves behind has the same options. Raises
        InputError.
        """
        pull = os.environ.get("TRISECT_PULL") or "missing"
        if pull not in _PULL_POLICIES:
            raise InputError(f"{pull!r} is none of {', '.join(_PULL_POLICIES)}", field="$TRISECT_PULL")
        models = os.environ.get(MODELS)
        return cls(
            image=os.environ.get("TRISECT_IMAGE") or VENDOR_IMAGE,
            pull_policy=_PULL_POLICIES[pull],
            models=ModelVolume.parse(models) if models else None,
            priority_class=os.environ.get("TRISECT_PRIORITY_CLASS") or None,
            runtime_class=os.environ.get("TRISECT_RUNTIME_CLASS") or None,
            pull_secrets=tuple(filter(None, os.environ.get("TRISECT_PULL_SECRETS", "").split(","))),
        )
