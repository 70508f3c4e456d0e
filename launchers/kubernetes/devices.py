"""Devices of a cluster: `NODE/cpu-0` is a core of a node, `NODE/GPU-...` a GPU by its UUID."""

from __future__ import annotations

import re
from dataclasses import dataclass

from controlplane.domain.errors import InputError
from launchers.gpu.gpus import is_gpu

_CORE = re.compile(r"cpu-(\d+)")


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """A device of one node. `device` is `cpu-0` or a GPU's UUID."""

    node: str
    device: str

    @classmethod
    def parse(cls, text: str) -> NodeDevice:
        """Return the device that a spec names. Raises InputError."""
        node, _, device = text.partition("/")
        if not node or not (_CORE.fullmatch(device) or is_gpu(device)):
            raise InputError(
                f"{text!r} is no device of a cluster: write NODE/cpu-0 or NODE/GPU-...", field="device"
            )
        return cls(node, device)

    @property
    def gpu(self) -> bool:
        """Whether it is a GPU."""
        return is_gpu(self.device)

    @property
    def core(self) -> int:
        """The number of a core; Kubernetes pins nothing, so it only tells shares of different cores apart."""
        found = _CORE.fullmatch(self.device)
        if found is None:
            raise ValueError(f"{self.device} is no core")
        return int(found.group(1))
