"""What Cluster Autoscaler does for one group of nodes, where a node is started within seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from background import Background

from kube.cluster import Cluster
from kube.node import Node

_LOOK_S = 0.5
UNNEEDED_S = 15.0
"""A node without a pod for so long is ended."""


class NodeScaler(Background):
    """Brings a node with these labels for a pod that fits on none; ends it once empty, and with the context.

    `brought_s` and `ended_s` are since the epoch, as they are done.
    """

    def __init__(self, cluster: Cluster, labels: Mapping[str, str], image: Path) -> None:
        super().__init__()
        self._cluster = cluster
        self._labels = labels
        self._image = image
        self.node: Node | None = None
        self.brought_s = self.ended_s = 0.0

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self.node is not None and not self.ended_s:
            self._cluster.remove_node(self.node)

    def _run(self) -> None:
        needed_s = time.monotonic()
        while not self._stop.wait(_LOOK_S) and not self.ended_s:
            try:
                pods = self._cluster.get("/api/v1/pods")["items"]
            except httpx.HTTPError:
                continue  # the API server is away
            if self.node is None:
                if any(map(self._is_for_a_new_node, pods)):
                    self.node = self._cluster.add_node(self._labels, self._image)
                    self.brought_s, needed_s = time.time(), time.monotonic()
            elif any(pod["spec"].get("nodeName") == self.node.name for pod in pods):
                needed_s = time.monotonic()
            elif time.monotonic() > needed_s + UNNEEDED_S:
                self._cluster.remove_node(self.node)
                self.ended_s = time.time()

    def _is_for_a_new_node(self, pod: dict[str, Any]) -> bool:
        """Whether the scheduler found no node for a pod, and one of the group would do."""
        selector = pod["spec"].get("nodeSelector") or {}
        return self._labels.items() >= selector.items() and any(
            c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable"
            for c in pod["status"].get("conditions", ())
        )
