"""A running fleet as a table for a person, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from controlplane.report.plan_table import number


@dataclass(frozen=True, slots=True)
class StatusRow:
    """One server, and what its workload sees. Unknown figures are None."""

    partition: str
    role: str
    state: str
    device: str
    percent: float
    enforced_by: str | None
    endpoints: tuple[str, ...]
    routed: bool
    http_port: int
    grpc_port: int
    slo_ms: float | None = None
    p99_ms: float | None = None
    planned_rps: float | None = None
    rate_rps: float | None = None
    errors: int | None = None


def status_table(rows: Sequence[StatusRow]) -> Table:
    """One line a server."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, right in (
        ("partition", False), ("role", False), ("state", False), ("device", False), ("share %", True),
        ("held by", False), ("endpoint", False), ("routed", False), ("rate/s", True), ("planned/s", True),
        ("P99 ms", True), ("SLO ms", True), ("errors", True),
    ):  # fmt: skip
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for row in rows:
        table.add_row(
            row.partition,
            row.role,
            row.state,
            row.device,
            f"{row.percent:g}",
            row.enforced_by or "nothing",
            ", ".join(row.endpoints),
            "yes" if row.routed else "no",
            number(row.rate_rps),
            number(row.planned_rps),
            number(row.p99_ms),
            number(row.slo_ms),
            "–" if row.errors is None else str(row.errors),
        )
    return table


def status_document(fleet: str, rows: Sequence[StatusRow]) -> Mapping[str, Any]:
    """The JSON of `ctl status`."""
    return {"fleet": fleet, "servers": [asdict(row) for row in rows]}
