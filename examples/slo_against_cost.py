"""What looser and tighter SLOs cost: the same twelve workloads with all SLOs scaled."""

from pathlib import Path

import trisect

spec = trisect.Spec.read(Path(__file__).with_name("twelve.yaml"))
print("SLOs   GPUs  $/hour  simulated late workloads")
for factor in (0.75, 1, 1.5, 2, 4):
    plan = trisect.plan(spec.scaled(slo=factor))
    if plan.infeasible:
        print(f"x {factor:<4} no plan holds {', '.join(i.workload for i in plan.infeasible)}")
        continue
    late = trisect.simulate(plan).breaks
    print(f"x {factor:<4} {plan.totals.gpus:4} {plan.totals.cost_per_hour:7.2f} {late:4}")
