"""The addresses of the replicas of a fleet's gateway, as they were seen last."""

from __future__ import annotations

from lightkube.resources.core_v1 import Pod

from launchers.kubernetes import names
from launchers.kubernetes.api import ClusterApi

CONTROL_PORT = 8003


class GatewayPods:
    """The gateway's pods of one fleet. `refresh` asks the API server, `addresses` never waits for it."""

    def __init__(self, api: ClusterApi, fleet: str) -> None:
        self._api = api
        self._labels = {names.COMPONENT: "gateway", names.FLEET: names.label_value(fleet)}
        self._seen: tuple[str, ...] = ()

    def refresh(self) -> None:
        """Read the pods anew. Raises EngineError; what was seen before stays."""
        found = self._api.find(Pod, self._labels)
        addresses = (one.status.podIP for one in found if one.status is not None and one.status.podIP)
        self._seen = tuple(f"{address}:{CONTROL_PORT}" for address in addresses)

    def addresses(self) -> tuple[str, ...]:
        """Return the control ports of all replicas, ready or not."""
        return self._seen
