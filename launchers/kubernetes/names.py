"""Names and labels of our objects in a cluster.

Labels select; the annotation SERVER carries a server's whole description (`launchers.labels.text_of`), since
a label's value has at most 63 characters of a small alphabet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

from lightkube.models.meta_v1 import ObjectMeta

from controlplane.domain.fleet import ServerSpec
from launchers.triton.labels import digest

DOMAIN = "trisect.dev"
FLEET = f"{DOMAIN}/fleet"
PARTITION = f"{DOMAIN}/partition"
ROLE = f"{DOMAIN}/role"
REVISION = f"{DOMAIN}/revision"
PLAN = f"{DOMAIN}/plan"
SERVER = f"{DOMAIN}/server"
NAME = f"{DOMAIN}/name"
MANAGED_BY = "app.kubernetes.io/managed-by"
COMPONENT = "app.kubernetes.io/component"
MANAGER = "trisect"
CONTAINER = "triton"

_LONGEST_LABEL = 63
_LONGEST_PART = 16
_LEGAL_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class HasMetadata(Protocol):
    """An object of the API server."""

    @property
    def metadata(self) -> ObjectMeta | None:
        """Its name, labels and annotations."""


def label_value(text: str) -> str:
    """Return `text` as a legal label value: itself where it is one, else cut, with a digest."""
    if _LEGAL_LABEL.fullmatch(text):
        return text
    code = digest(text)
    start = re.sub(r"[^A-Za-z0-9._-]", "-", text)[: _LONGEST_LABEL - len(code) - 1].strip("._-")
    return f"{start}-{code}" if start else code


def object_name(*parts: str) -> str:
    """Return a legal object name that begins like `parts` and is unique to them."""
    slugs = (re.sub(r"[^a-z0-9]+", "-", part.lower())[:_LONGEST_PART].strip("-") for part in parts)
    return "-".join((*filter(None, slugs), digest("|".join(parts))))


def server_object(spec: ServerSpec) -> str:
    """Return the name of a server's pod, and of its ConfigMap."""
    labels = spec.labels
    return object_name(labels.fleet, labels.partition, labels.role.value, labels.revision)


def partition_object(spec: ServerSpec) -> str:
    """Return the name of a partition's PodDisruptionBudget."""
    return object_name(spec.labels.fleet, spec.labels.partition)


def fleet_labels(fleet: str) -> dict[str, str]:
    """Return the labels that select a fleet's servers and their objects."""
    return {MANAGED_BY: MANAGER, COMPONENT: "server", FLEET: label_value(fleet)}


def partition_labels(spec: ServerSpec) -> dict[str, str]:
    """Return the labels that select a partition's servers: active, shadow, their successors."""
    return {**fleet_labels(spec.labels.fleet), PARTITION: label_value(spec.labels.partition)}


def server_labels(spec: ServerSpec) -> Mapping[str, str]:
    """Return the labels of one server."""
    return {
        **partition_labels(spec),
        ROLE: spec.labels.role.value,
        REVISION: label_value(spec.labels.revision),
        PLAN: label_value(spec.labels.plan_hash),
    }


def object_of(one: HasMetadata) -> str:
    """Return the name of an object that the API server returned."""
    return (one.metadata.name if one.metadata else None) or ""


def name_of(one: HasMetadata) -> str:
    """Return the name of the server to which a ConfigMap belongs."""
    return str(((one.metadata.annotations if one.metadata else None) or {}).get(NAME, ""))
