"""gpu-lets+ on iGniter's twelve workloads, beside what its authors report (Fig 14, 18, Sec. 5.3)."""

from __future__ import annotations

from planning import layout, planned, published


def test_table_3_takes_eight_gpus_of_at_most_two() -> None:
    plan = planned("gpu-lets+", published(12))
    assert len(plan.gpus) == 8
    assert max(len(g.partitions) for g in plan.gpus) == 2
    placed = {name: chosen for gpu in layout(plan) for name, chosen in gpu.items()}
    assert placed["W4"] == (60.0, 2)
    assert placed["W9"][0] == 40.0
    assert placed["W2"][0] == 40.0
