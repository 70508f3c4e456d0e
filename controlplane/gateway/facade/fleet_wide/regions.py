"""Shared-memory regions of each client.

An inference names regions inside its body, which the gateway does not read. So a name is a secret: each
client's names begin with a random text that other clients do not know. A key names memory of the host, which
every process of the host can list, so keys begin with the client's name, and registering one of another
client is refused.
"""

from __future__ import annotations

from dataclasses import dataclass


class NotOwned(Exception):
    """A region or a key of another client, or of none."""


@dataclass(frozen=True, slots=True)
class Regions:
    """The regions of one client; `prefix` is None for one that was created before clients had prefixes."""

    client: str
    prefix: str | None

    def owns(self, name: str) -> bool:
        """Return whether a region is this client's."""
        return self.prefix is not None and name.startswith(self.prefix) and name != self.prefix

    def check(self, name: str, key: str | None = None) -> None:
        """Raise NotOwned for another client's region or memory; `key` is None for memory of a GPU."""
        if self.prefix is None:
            raise NotOwned(
                "this client was created before regions had owners; `ctl token revoke` and `create` it anew"
            )
        if not self.owns(name):
            raise NotOwned(f"the names of this client's regions begin with {self.prefix!r}")
        if key is not None and not key.lstrip("/").startswith(f"{self.client}."):
            raise NotOwned(f"the keys of this client's regions begin with '/{self.client}.'")


class AllRegions(Regions):
    """Every region: without tokens there are no identities, so all clients share one space of names."""

    def owns(self, name: str) -> bool:
        """Return True."""
        return True

    def check(self, name: str, key: str | None = None) -> None:
        """Accept every name and key."""


ANY_REGION = AllRegions("", None)
