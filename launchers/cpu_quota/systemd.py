"""Quotas for users whose cgroup was not delegated: a scope of the user's systemd."""

from __future__ import annotations

import shutil
import subprocess

from controlplane.domain.fleet import ShareUsage
from launchers.cpu_quota.cgroup import usage_of
from launchers.cpu_quota.counters import group_paths, mount_points
from launchers.cpu_quota.mechanism import Group, Mechanism, Weight, bandwidth

_READ_BACK = 'cat "$0/$(sed -n s/^0:://p /proc/self/cgroup)/cpu.max"'


class SystemdScope(Mechanism):
    """`systemd-run --user --scope`: systemd makes the group, and removes it when its last process ends."""

    name = "systemd-scope"

    def obstacle(self) -> str | None:
        """Return the obstacle; None after a scope's quota was read back from inside it."""
        if shutil.which("systemd-run") is None:
            return "systemd-run is not installed"
        mounts = mount_points("cgroup2")
        if not mounts:
            return "no hierarchy of cgroups version 2 is mounted"
        command = [*self._command("trisect-trial", 20.0), "sh", "-c", _READ_BACK, str(mounts[0])]
        try:
            tried = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        except subprocess.TimeoutExpired:
            return "systemd-run --user did not answer within 10 s"
        quota, period = bandwidth(20.0)
        if tried.stdout.split() == [str(quota), str(period)]:
            return None
        told = (tried.stderr or tried.stdout).strip().splitlines()
        return told[-1] if told else f"systemd-run ended with {tried.returncode}"

    def enter(self, group: Group, percent: float) -> list[str]:
        """Return the command that makes the scope and runs in it."""
        return self._command(_unit(group), percent)

    def weigh(self, group: Group, weight: Weight) -> None:
        """Let systemd write another weight."""
        _set_properties(group, _weight(weight))

    def resize(self, group: Group, percent: float) -> None:
        """Let systemd write another quota."""
        _set_properties(group, *_quota(percent))

    def usage(self, group: Group, pids: tuple[int, ...]) -> ShareUsage:
        """Return the kernel's counters of the processes' scope."""
        for pid in pids:
            for controllers, path in group_paths(pid):
                if controllers == [""]:
                    return usage_of(mount_points("cgroup2")[0] / path)
        return ShareUsage(None, None, None)

    def _command(self, unit: str, percent: float) -> list[str]:
        return [
            *("systemd-run", "--user", "--scope", "--quiet", "--collect", f"--unit={unit}"),
            *(f"--property={told}" for told in (*_quota(percent), _weight(Weight.START))),
            "--",
        ]


def _unit(group: Group) -> str:
    return f"trisect-{group.server}"


def _set_properties(group: Group, *told: str) -> None:
    command = ["systemctl", "--user", "set-property", "--runtime", f"{_unit(group)}.scope", *told]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except subprocess.SubprocessError as error:
        raise OSError(f"systemd did not set {', '.join(told)}: {error}") from error


def _weight(weight: Weight) -> str:
    return f"CPUWeight={weight.weight}"


def _quota(percent: float) -> list[str]:
    quota, period = bandwidth(percent)
    return [f"CPUQuota={100 * quota / period:g}%", f"CPUQuotaPeriodSec={period}us"]
