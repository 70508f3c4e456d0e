"""The permissions that a fleet needs in a cluster, and the text that names a missing one."""

from __future__ import annotations

import re
from dataclasses import dataclass

_DENIED = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group '
    r'"(?P<group>[^"]*)"(?: in the namespace "(?P<namespace>[^"]+)")?'
)


@dataclass(frozen=True, slots=True)
class RoleRule:
    """A rule of a Role, or with `cluster_wide` of a ClusterRole. `resource` may name a subresource."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    cluster_wide: bool = False

    def __str__(self) -> str:
        verbs = ", ".join(self.verbs)
        return f'{{apiGroups: ["{self.group}"], resources: ["{self.resource}"], verbs: [{verbs}]}}'


RULES = (
    RoleRule("", "pods", ("get", "list", "watch", "create", "delete")),
    RoleRule("", "pods/resize", ("patch",)),
    RoleRule("", "pods/log", ("get",)),
    RoleRule("", "configmaps", ("list", "create", "delete")),
    RoleRule("policy", "poddisruptionbudgets", ("create", "patch", "delete")),
    RoleRule("", "nodes", ("get", "list"), cluster_wide=True),
)
"""What every fleet needs."""


def missing_rule(message: str) -> str | None:
    """Return the API server's refusal with the rule that is missing; None where it says something else."""
    found = _DENIED.search(message)
    if found is None:
        return None
    rule = RoleRule(found["group"], found["resource"], (found["verb"],))
    place = f"the Role in namespace {found['namespace']}" if found["namespace"] else "the ClusterRole"
    return (
        f"the cluster lets {found['user']} not {found['verb']} {found['resource']}: {place} lacks the rule "
        f"{rule}; `ctl doctor --launcher kubernetes` shows all that are missing"
    )
