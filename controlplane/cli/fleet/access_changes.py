"""How a fleet is served otherwise after `ctl apply` and `ctl rollback`; looser access needs consent."""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.cli.output import say
from controlplane.domain.errors import InputError
from controlplane.domain.serving import Difference
from controlplane.gateway.security.certificate import is_loopback


def lines(changed: Iterable[Difference]) -> list[str]:
    """Return a line for each change."""
    return [f"serve: {one.path} {one.before} -> {one.after}" for one in changed]


def say_or_refuse(changed: Iterable[Difference], *, accepted: bool) -> None:
    """Say each change, where no person was asked.

    Raises InputError, unless it is `accepted`, where more clients could connect, or calls would no longer be
    written down.
    """
    changed = tuple(changed)
    looser = [one for one in changed if _is_looser(one)]
    if looser and not accepted:
        raise InputError(f"is needed for looser access ({'; '.join(lines(looser))})", field="--yes")
    for line in lines(changed):
        say(line)


def _is_looser(one: Difference) -> bool:
    match one.path:
        case "tls.cert" | "tls.client_ca":
            return one.after is None
        case "access.tokens" | "access.audit":
            return not one.after
        case "access.plain_text":
            return bool(one.after)
        case "listen.host":
            return not is_loopback(str(one.after))
        case _:
            return False
