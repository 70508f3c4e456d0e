"""Whether the host itself, not a server, makes requests late. Pure.

The gateway runs under no quota of ours and works little, so its waits show the host: where it is ready to run
and mostly waits for a core, so do the servers, and a larger share of a contended core is no larger. A server
that uses up its quota all the same is slow because of its share.
"""

from __future__ import annotations

from controlplane.domain.observation import HostSeen, ServerSeen

WAITING = 0.5
"""Ready to run, it waits more than it runs. At 110 requests/s: 75 % on two cores at a load average of 7.5."""
STEAL = 0.05
THROTTLED = 0.05

AT_ITS_QUOTA = 0.4
"""A server that uses up its quota in this part of the periods is slow because of its share. On a contended
host: 0.95 to 1 with its quota halved, 0.5 to 0.7 with two thirds of it, 0.05 to 0.5 with all of it."""


def contention(host: HostSeen | None) -> str:
    """The evidence that the host is contended, in words; empty where there is none."""
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


def starves(host: HostSeen | None, server: ServerSeen) -> bool:
    """Whether the host slows a server, not its share: it is contended, and the quota is not used up."""
    return bool(contention(host)) and server.throttled is not None and server.throttled < AT_ITS_QUOTA
