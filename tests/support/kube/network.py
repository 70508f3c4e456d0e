"""Bridges and addresses. All are private to the host.

No kube-proxy runs: the API server itself listens at the address of the Service `kubernetes`, so pods reach it
as in any cluster. Pod addresses are reachable from the host and from pods of the other node.
"""

import subprocess
from dataclasses import dataclass

from kube.processes import program

PREFIX = "tsk-"
SERVICES = "10.213.0.0/24"
API_ADDRESS = "10.213.0.1"
API_BRIDGE = f"{PREFIX}api"


@dataclass(frozen=True)
class Subnet:
    """A node's part of the pod network; its first address is the node's."""

    bridge: str
    number: int

    @property
    def node_address(self) -> str:
        return f"10.213.{self.number}.1"

    @property
    def pods(self) -> str:
        return f"10.213.{self.number}.0/24"


def add_bridge(name: str, address: str) -> None:
    ip("link", "add", name, "type", "bridge")
    ip("address", "add", address, "dev", name)
    ip("link", "set", name, "up")


def ip(*arguments: str, check: bool = True) -> str:
    return subprocess.run([program("ip"), *arguments], check=check, capture_output=True, text=True).stdout
