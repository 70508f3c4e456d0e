"""The objects beside a server's pod: its rendered files, and its partition's disruption budget."""

from __future__ import annotations

from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.models.policy_v1 import PodDisruptionBudgetSpec
from lightkube.resources.core_v1 import ConfigMap
from lightkube.resources.policy_v1 import PodDisruptionBudget

from controlplane.domain.fleet import ServerSpec
from launchers.kubernetes import names
from launchers.kubernetes.objects.volumes import config_key
from launchers.kubernetes.repository import RenderedFiles


def config_map(spec: ServerSpec, files: RenderedFiles) -> ConfigMap:
    """Return a server's rendered files. Immutable: another content is another revision, with another name."""
    return ConfigMap(
        metadata=ObjectMeta(
            name=names.server_object(spec),
            labels=dict(names.server_labels(spec)),
            annotations={names.NAME: spec.name},
        ),
        data={config_key(path): text for path, text in sorted(files.texts.items())},
        immutable=True,
    )


def disruption_budget(spec: ServerSpec) -> PodDisruptionBudget:
    """Return the budget of a partition: a voluntary eviction leaves one of its servers, active or shadow.

    `minAvailable`, since pods without a controller allow nothing else. A server that is not ready may be
    evicted: it protects nothing.
    """
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=names.partition_object(spec), labels=names.partition_labels(spec)),
        spec=PodDisruptionBudgetSpec(
            minAvailable=1,
            selector=LabelSelector(matchLabels=names.partition_labels(spec)),
            unhealthyPodEvictionPolicy="AlwaysAllow",
        ),
    )
