"""The cluster's programs and how they run."""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ASSETS = "KUBEBUILDER_ASSETS"
MARK = "TRISECT_TEST_CLUSTER"
"""Set in the environment of every process of a cluster, which shims inherit."""

BUILT = ("kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubelet")
INSTALLED = (
    "kubectl",
    "etcd",
    "containerd",
    "ctr",
    "runc",
    "ip",
    "openssl",
    "umount",
    "docker",
    "debootstrap",
)
CNI_PLUGINS = Path("/usr/lib/cni")


class MissingProgram(Exception):
    """Something that the cluster needs is not on this host."""


def program(name: str) -> str:
    """Path of a program: from the folder of the assets, else from this host."""
    place = Path(os.environ.get(ASSETS, "")) / name
    found = str(place) if place.is_file() else shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None or (name in BUILT and not place.is_file()):
        raise MissingProgram(
            f"{name} is neither in ${ASSETS} ({os.environ.get(ASSETS, 'unset')}) nor installed"
        )
    return found


def check() -> None:
    """Raise MissingProgram, with the way out, where this host cannot run a cluster."""
    if not os.environ.get(ASSETS):
        raise MissingProgram(f"set {ASSETS} to a folder with {', '.join(BUILT)}")
    if os.geteuid() != 0:
        raise MissingProgram("nodes need root")
    for name in (*BUILT, *INSTALLED):
        program(name)
    if not (CNI_PLUGINS / "bridge").exists():
        raise MissingProgram("no CNI plugins: apt-get install containernetworking-plugins")
    if not Path("/sys/fs/cgroup/cpu").is_dir():
        raise MissingProgram("the nodes' groups are made for cgroup v1, which this host does not mount")


@dataclass
class Process:
    """A program that can be killed and started again."""

    name: str
    command: Sequence[str]
    folder: Path
    child: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                [program(self.command[0]), *self.command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, MARK: str(self.folder), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
                start_new_session=True,
            )

    def end(self, how: signal.Signals = signal.SIGTERM, *, patience_s: float = 30.0) -> None:
        """End it, and return once it is gone."""
        if self.child is not None:
            self.child.send_signal(how)
            try:
                self.child.wait(patience_s)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait(patience_s)
            self.child = None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def check_alive(self) -> None:
        """Raise AssertionError, with the end of its log, where it has ended."""
        alive = self.child is not None and self.child.poll() is None
        assert alive, f"{self.name} ended:\n{self.last_lines()}"

    def last_lines(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]
