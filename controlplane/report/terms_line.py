"""What a plan takes over without a change to any server, in one line."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.planners.replan.differences import TermChange


def terms_line(changed: Sequence[TermChange]) -> str:
    """`nothing to do`, and each workload's new terms, such as its SLO, with those before."""
    if not changed:
        return "nothing to do"
    terms: dict[str, list[str]] = {}
    for one in changed:
        terms.setdefault(one.workload, []).append(f"{one.field} {_value(one.before)} -> {_value(one.after)}")
    told = "; ".join(f"{workload}: {', '.join(fields)}" for workload, fields in terms.items())
    return f"nothing to do for the servers; taken over: {told}"


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"
