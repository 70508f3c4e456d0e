"""A plan as a table for a person."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule


def number(value: float | None, digits: int = 1) -> str:
    """A number, or a dash for what is unknown."""
    return "–" if value is None else f"{value:.{digits}f}"


def plan_table(plan: Plan) -> RenderableType:
    """Every partition with its GPU, then the totals and what is infeasible."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("GPU", no_wrap=True)
    for name, right in (
        ("partition", False), ("share %", True), ("workload", False), ("model", False), ("batch", True),
        ("rate/s", True), ("capacity/s", True), ("use", True), ("exec ms", True), ("P99 ms", True),
        ("SLO ms", True), ("shadow", False),
    ):  # fmt: skip
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for gpu in plan.gpus:
        label = f"{gpu.id} ({gpu.percent:g} %)"
        for partition in gpu.partitions:
            for placement in partition.workloads:
                table.add_row(label, *_cells(gpu, partition, placement))
                label = ""
    return Group(table, Text(), *_footer(plan))


def _cells(gpu: PlannedGpu, partition: Partition, placement: Placement) -> list[str]:
    predicted = placement.predicted
    served = next(m for m in partition.models if m.model == placement.model)
    shadow = partition.shadow
    where = "" if shadow is None or shadow.gpu == gpu.id else f" on {shadow.gpu}"
    return [
        partition.id,
        f"{partition.percent:g}",
        placement.name,
        placement.model,
        str(served.batch),
        f"{placement.rate_rps:g}",
        number(predicted.capacity_rps, 0),
        number(predicted.utilisation, 2),
        number(predicted.execution_ms),
        number(predicted.p99_ms),
        f"{placement.slo_ms:g}",
        "–" if shadow is None else f"{shadow.policy} {shadow.percent:g} %{where}",
    ]


def _footer(plan: Plan) -> list[Text]:
    lines = []
    if plan.totals is not None:
        totals = plan.totals
        text = (
            f"{plan.strategy}: {totals.gpus} GPUs, {totals.percent:g} % of share, "
            f"{totals.cost_per_hour:.2f} per hour"
        )
        if totals.lower_bound_cost_per_hour is not None:
            text += f" (lower bound {totals.lower_bound_cost_per_hour:.2f})"
        if totals.planning_ms is not None:
            text += f", planned in {totals.planning_ms:.1f} ms"
            parts = ", ".join(f"{name} {ms:.1f}" for name, ms in totals.phases_ms)
            text += f" ({parts})" if parts else ""
        lines.append(Text(text))
    placed = [w for _, _, w in plan.placements()]
    capacity = sum(w.predicted.capacity_rps or 0.0 for w in placed)
    lines.append(Text(f"{sum(w.rate_rps for w in placed):g}/s planned for, capacity {capacity:.0f}/s"))
    rule = "P99 ≤ SLO" if plan.rule is Rule.P99 else "execution ≤ SLO/2"
    kept = "verified" if plan.verified else f"{len(plan.violations)} promises not kept"
    lines.append(Text(f"rule {plan.rule} ({rule}), latency model {plan.latency_model}: {kept}"))
    lines += [Text(f"  {v.subject}: {v.reason}", style="red") for v in plan.violations]
    for i in plan.infeasible:
        nearest = []
        if i.nearest_slo_ms is not None:
            nearest.append(f"an SLO of {i.nearest_slo_ms:.1f} ms")
        if i.nearest_rate_rps is not None:
            nearest.append(f"a rate of {i.nearest_rate_rps:.0f}/s")
        fits = f"; {' or '.join(nearest)} would fit" if nearest else ""
        lines.append(Text(f"infeasible: {i.workload}: {i.reason}{fits}", style="red"))
    return lines


def show(renderable: RenderableType) -> None:
    """Print to stdout, as wide as it needs where stdout is no terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)
    console.print(renderable)
