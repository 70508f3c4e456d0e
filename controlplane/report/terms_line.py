"""The line about changes of a plan that need no change of a server."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.planning.replan.differences import TermChange


def terms_line(changed: Sequence[TermChange]) -> str:
    """Return `nothing to do`, with each workload's new and old terms, such as its SLO."""
    if not changed:
        return "nothing to do"
    terms: dict[str, list[str]] = {}
    for one in changed:
        terms.setdefault(one.workload, []).append(f"{one.field} {_value(one.before)} -> {_value(one.after)}")
    listed = "; ".join(f"{workload}: {', '.join(fields)}" for workload, fields in terms.items())
    return f"nothing to do for the servers; changed: {listed}"


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"
