"""Whether the host, not a server, makes requests late. Pure.

The gateway runs under no quota of ours and works little, so its waits show the host: where it mostly waits
for a core while it is ready to run, servers wait too, and a larger share of a contended core is no larger. A
server that uses up its quota all the same is slow because of its share.
"""

from __future__ import annotations

from controlplane.domain.observation import HostSeen, ServerSeen

WAITING = 0.5
"""Ready to run, it waits more than it runs. At 110 requests/s: 75 % on two cores at a load average of 7.5."""
STEAL = 0.05
THROTTLED = 0.05

AT_ITS_QUOTA = 0.8
"""Late answers alone count where a server uses up its quota in this part of the periods. On a contended host:
0.95 to 1 with its quota halved, 0.5 to 0.7 with two thirds of it, 0.05 to 0.6 with all of it."""


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
    """Return the part of a batch's time that the host cannot explain; 1 on a host that is not contended.

    A server has its whole share in the periods in which it uses up its quota.
    """
    if server.throttled is None or not contention(host):
        return 1.0
    return server.throttled


def starves(host: HostSeen | None, server: ServerSeen) -> bool:
    """Return whether late answers are no evidence: the host is contended, the quota is not used up."""
    return unexplained(host, server) < AT_ITS_QUOTA
