"""A node: a kubelet and its containerd, with a bridge and control groups of its own."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

from kube import images, network
from kube.control_plane import Credentials
from kube.network import Subnet
from kube.processes import CNI_PLUGINS, Process, program

CGROUPS = Path("/sys/fs/cgroup")
_CONTAINERD_READY_S = 60.0
_KUBELET_PORT = 10250
_HOG_S = 60.0
_SPARE_BYTES = 64 * 2**20
_HOG = """
import os, sys, time
open(sys.argv[1], "w").write(str(os.getpid()))
taken = []

def has_memory(pid):
    try:
        return open(f"/proc/{pid}/statm").read().split()[0] != "0"
    except (FileNotFoundError, ProcessLookupError):
        return False

while has_memory(sys.argv[2]) and len(taken) < 512:
    began = time.monotonic()
    taken.append(bytearray(b"x") * 2**20)
print(began, time.monotonic())
"""
"""Takes memory in a control group until a process there has none; prints when the last of it was taken.

One that is dead and not waited for yet has none: this process would be ended next.
"""


class Node:
    """One node. `kill` ends it, but for the containers, which go on; `lose` as a loss of power would."""

    def __init__(self, folder: Path, name: str, number: int, credentials: Credentials) -> None:
        self.name = name
        self.folder = folder / name
        self.subnet = Subnet(f"{network.PREFIX}{name}", number)
        self.folder.mkdir()
        self._socket = self.folder / "containerd.sock"
        self._write_settings(credentials)
        self.containerd = Process(
            f"{name}-containerd", ["containerd", f"--config={self.folder}/containerd.toml"], folder
        )
        self.kubelet = Process(
            f"{name}-kubelet",
            [
                "kubelet",
                f"--config={self.folder}/kubelet.yaml",
                f"--kubeconfig={credentials.kubeconfig(f'system:node:{name}')}",
                f"--hostname-override={name}",
                f"--node-ip={self.subnet.node_address}",
                f"--root-dir={self.folder}/kubelet",
                f"--cert-dir={self.folder}/kubelet/pki",
            ],
            folder,
        )

    @property
    def group(self) -> str:
        """The name of the node's control groups."""
        return self.subnet.bridge

    def start(self, *archives: Path) -> None:
        """Start it with these images and that of a pod's sandbox."""
        network.add_bridge(self.subnet.bridge, f"{self.subnet.node_address}/24")
        self._make_groups()
        self.containerd.start()
        self._await_containerd()
        for archive in (images.pause(self.folder.parent), *archives):
            self.load(archive)
        self.kubelet.start()

    def kill(self) -> None:
        self.kubelet.end(signal.SIGKILL)
        self.containerd.end(signal.SIGKILL)

    def lose(self) -> None:
        """Kill it and cut its pods off: nothing answers any more, not even that nothing is there."""
        self._plug("down")
        self.kill()

    def revive(self) -> None:
        self._plug("up")
        self.containerd.start()
        self._await_containerd()
        self.kubelet.start()

    def exhaust(self, container_id: str) -> tuple[float, float]:
        """Let a container run out of memory, so that the kernel ends its largest process; from when to when.

        Its limit is lowered to little more than it needs, and a process of this host takes the rest.
        """
        group = next((CGROUPS / "memory" / self.group).rglob(container_id))
        victims = self.pids(container_id)
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        (group / "memory.limit_in_bytes").write_text(str(int(stat["total_rss"]) + _SPARE_BYTES))
        hog = [sys.executable, "-c", _HOG, str(group / "cgroup.procs"), str(min(victims))]
        done = subprocess.run(hog, capture_output=True, text=True, timeout=_HOG_S, check=True)
        began, ended = map(float, done.stdout.split())
        return began, ended

    def _plug(self, state: str) -> None:
        """Set the state of the bridge's ports, one for each pod."""
        for port in (Path("/sys/class/net") / self.subnet.bridge / "brif").iterdir():
            network.ip("link", "set", port.name, state)

    def load(self, archive: Path) -> None:
        """Import an image."""
        self._ctr("images", "import", str(archive))

    def quota(self, pod_uid: str, container_id: str) -> tuple[int, int]:
        """The container's CPU quota and period in microseconds, as the kernel has them."""
        group = next((CGROUPS / "cpu" / self.group).rglob(container_id))
        assert f"pod{pod_uid}" in str(group)
        quota, period = (int((group / f"cpu.cfs_{n}_us").read_text()) for n in ("quota", "period"))
        return quota, period

    def cut(self, container_id: str, percent: float) -> None:
        """Leave a container so much of a core, as work beside it would."""
        group = next((CGROUPS / "cpu" / self.group).rglob(container_id))
        period = int((group / "cpu.cfs_period_us").read_text())
        (group / "cpu.cfs_quota_us").write_text(str(round(period * percent / 100)))

    def pids(self, container_id: str) -> tuple[int, ...]:
        """The container's processes; none of one that has ended."""
        groups = list((CGROUPS / "cpu" / self.group).rglob(container_id))
        return tuple(int(pid) for group in groups for pid in (group / "cgroup.procs").read_text().split())

    def _ctr(self, *arguments: str) -> None:
        command = [program("ctr"), "--address", str(self._socket), "--namespace", "k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"

    def _await_containerd(self) -> None:
        deadline = time.monotonic() + _CONTAINERD_READY_S
        command = [program("ctr"), "--address", str(self._socket), "--connect-timeout", "1s", "version"]
        while subprocess.run(command, capture_output=True, check=False).returncode:
            self.containerd.check_alive()
            assert time.monotonic() < deadline, self.containerd.last_lines()
            time.sleep(0.1)

    def _make_groups(self) -> None:
        for hierarchy in CGROUPS.iterdir():
            if (hierarchy / "cgroup.procs").exists() and hierarchy.name != "unified":
                (hierarchy / self.group).mkdir(exist_ok=True)
        for kind in ("cpus", "mems"):
            value = (CGROUPS / "cpuset" / f"cpuset.{kind}").read_text()
            (CGROUPS / "cpuset" / self.group / f"cpuset.{kind}").write_text(value)

    def _write_settings(self, credentials: Credentials) -> None:
        (self.folder / "containerd.toml").write_text(self._containerd_settings())
        (self.folder / "cni").mkdir()
        (self.folder / "cni" / "bridge.conflist").write_text(json.dumps(self._network_settings()))
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet_settings(credentials)))

    def _containerd_settings(self) -> str:
        # Without restrict_oom_score_adj, runc dies where root lacks CAP_SYS_RESOURCE.
        return f"""
version = 2
root = "{self.folder}/containerd"
state = "{self.folder}/run"
[grpc]
  address = "{self._socket}"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  sandbox_image = "{images.PAUSE}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{self.folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = "{self.folder}/runc"
"""

    def _network_settings(self) -> dict[str, object]:
        bridge = {
            "type": "bridge",
            "bridge": self.subnet.bridge,
            "isGateway": True,
            "ipam": {
                "type": "host-local",
                "dataDir": f"{self.folder}/addresses",
                "ranges": [[{"subnet": self.subnet.pods}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        return {"cniVersion": "0.4.0", "name": self.subnet.bridge, "plugins": [bridge]}

    def _kubelet_settings(self, credentials: Credentials) -> dict[str, object]:
        served = credentials.sign(self.name, self.subnet.node_address)
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.subnet.node_address,
            "port": _KUBELET_PORT,
            "healthzBindAddress": self.subnet.node_address,
            "tlsCertFile": str(served.certificate),
            "tlsPrivateKeyFile": str(served.key),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(credentials.authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.group}",
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            # The kernel's 100 ms more than doubles the P99 of a small share.
            "cpuCFSQuotaPeriod": "10ms",
            "featureGates": {"CustomCPUCFSQuotaPeriod": True},
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
            },
            "imageGCHighThresholdPercent": 100,
            "podLogsDir": f"{self.folder}/logs",
            "resolvConf": "",
        }
