"""Plan shares of GPUs for Triton models, from Python.

    >>> import trisect
    >>> spec = trisect.Spec.of({
    ...     "schema_version": 1,
    ...     "gpus": [{"type": "v100"}],
    ...     "workloads": [
    ...         {"name": "search", "model": "resnet50", "slo_ms": 40, "rate_rps": 400},
    ...         {"name": "ads", "model": "alexnet", "slo_ms": 15, "rate_rps": 500},
    ...     ],
    ... })
    >>> plan = trisect.plan(spec, strategy="igniter")
    >>> [(p.id, p.percent) for _, p in plan.partitions()]
    [('search', 27.5), ('ads', 10.0)]
    >>> trisect.plan(spec.scaled(rate=2), strategy="igniter").totals.percent
    70.0

`Spec`, `plan`, `verify` and `simulate` do what `ctl plan` and `ctl simulate` do, on values: nothing is
started, and no file is written except by `Plan.write`. `ctl apply` runs a fleet from such a file.
docs/python.md says which of these names stay as they are from one version to the next.
"""

from controlplane.domain.errors import InputError, TrisectError
from controlplane.domain.plan import Infeasible, Partition, Placement, PlannedGpu, Rule, Totals, Violation
from controlplane.domain.profile import Profile
from controlplane.domain.workload import GpuRequest, Workload
from controlplane.simulate.result import SimulationResult, WorkloadOutcome
from trisect.planning import Plan, Spec, plan, profiles, simulate, verify

__all__ = [
    "GpuRequest",
    "Infeasible",
    "InputError",
    "Partition",
    "Placement",
    "Plan",
    "PlannedGpu",
    "Profile",
    "Rule",
    "SimulationResult",
    "Spec",
    "Totals",
    "TrisectError",
    "Violation",
    "Workload",
    "WorkloadOutcome",
    "plan",
    "profiles",
    "simulate",
    "verify",
]
