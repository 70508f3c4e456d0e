"""The table of `ctl validate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from controlplane.report.tables.terminal import table_of

KINDS = {
    "alone": "alone",
    "measured": "measured side by side",
    "batch": "new batch size",
    "share": "share outside",
    "pair": "new pair",
    "model": "new beside others",
}
"""How the kinds of points (`latency.fitting.kinds`) are called in a table."""


def validation_table(document: Mapping[str, Any]) -> Table:
    """Return the JSON of `ctl validate` as a table: all, each model and each kind, for each latency model."""
    table = table_of("latency model, of, >n, >mean error %, >bias %, >95th %, >largest %, >below upper 95 %")
    for latency_model, assessed in document["latency_models"].items():
        kinds = {KINDS[kind]: figures for kind, figures in assessed["per_kind"].items()}
        for model, figures in {"all": assessed["overall"], **assessed["per_model"], **kinds}.items():
            table.add_row(
                latency_model if model == "all" else "",
                model,
                str(figures["n"]),
                *(
                    f"{figures[key]:.2f}"
                    for key in ("mape_percent", "bias_percent", "p95_percent", "max_percent")
                ),
                f"{figures['coverage_95_percent']:.1f}",
            )
    return table
