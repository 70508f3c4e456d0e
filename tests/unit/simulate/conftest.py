from collections.abc import Callable

import pytest

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.domain.workload import Arrivals

Row = tuple[str, str, ServedModel, list[tuple[str, float]]]


@pytest.fixture
def plan_of() -> Callable[..., Plan]:
    """A plan from rows (GPU, partition, served model, [(workload, rate)])."""

    def build(*rows: Row, slo_ms: float = 30.0, arrivals: Arrivals = Arrivals.POISSON) -> Plan:
        gpus: dict[str, list[Partition]] = {}
        for gpu, partition, served, workloads in rows:
            placements = tuple(
                Placement(name, name, served.model, rate, slo_ms, arrivals=arrivals)
                for name, rate in workloads
            )
            gpus.setdefault(gpu, []).append(Partition(partition, 50.0, (served,), placements))
        planned = tuple(PlannedGpu(gpu, "t4", tuple(parts)) for gpu, parts in gpus.items())
        return Plan("by-hand", Rule.P99, "known", planned)

    return build
