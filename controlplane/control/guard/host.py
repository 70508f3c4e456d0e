"""Whether the host, not a server, makes requests late. Pure.

The kernel counts how long the busiest thread of a server is ready to run without running: because the server
has used up its quota, or because other work has the core. The host explains the second part of a batch's time
and nothing else. The gateway runs under no quota of ours and works little, so its waits show the whole host:
where it mostly waits for a core while it is ready to run, a larger share of that core is no larger.
"""

from __future__ import annotations

from controlplane.domain.observation import HostSeen, ServerSeen

WAITING = 0.5
"""Ready to run, it waits more than it runs. At 110 requests/s: 75 % on two cores at a load average of 7.5."""
STEAL = 0.05
THROTTLED = 0.05

UNEXPLAINED = 0.8
"""Late answers alone count where the host explains less than a fifth of a server's time."""

LEAST_UNEXPLAINED = 0.05


def contention(host: HostSeen | None) -> str:
    """Return the evidence that the host is contended, in words; empty where there is none."""
    if host is None:
        return ""
    found = []
    if host.waiting >= WAITING:
        found.append(f"the gateway waited for a core in {host.waiting:.0%} of the time it was ready to run")
    if host.steal >= STEAL:
        found.append(f"the hypervisor withheld {host.steal:.0%} of the cores' time")
    if host.throttled >= THROTTLED:
        found.append(f"the gateway's own cgroup was throttled for {host.throttled:.0%} of the time")
    return f"the host is contended: {', '.join(found)}" if found else ""


def unexplained(host: HostSeen | None, server: ServerSeen) -> float:
    """Return the part of a batch's time that the host cannot explain; 1 where nothing is known of the server.

    Stolen time is neither a thread's run time nor its wait. A part remains at any delay: a batch that takes
    twenty times as long is no batch of usual time.
    """
    if server.delays is None:
        return 1.0
    steal = host.steal if host is not None else 0.0
    return max(LEAST_UNEXPLAINED, (1.0 - server.delays.starved) * (1.0 - steal))


def starves(host: HostSeen | None, unexplained_part: float) -> bool:
    """Return whether late answers are no evidence: the host is contended and explains a part of them."""
    return bool(contention(host)) and unexplained_part < UNEXPLAINED
