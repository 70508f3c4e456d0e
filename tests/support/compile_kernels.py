"""Compile the numeric kernels once, so that no process of a test run compiles them for itself.

    .venv/bin/python tests/support/compile_kernels.py

A kernel is compiled for the types of its first call, so this plans and simulates a little of each kind. Tests
compile what is left out here.
"""

from dataclasses import replace

import inss_instances
import numpy as np
import planning
from inss_instances import tables

from controlplane.domain.plan import Rule
from controlplane.papers.inss.policy import Episodes
from controlplane.papers.inss.problem import Problem
from controlplane.planning import registry
from controlplane.simulate.engine import Settings, simulate


def main() -> None:
    workloads = [planning.workload(f"w{i}", model, 60.0, 50.0) for i, model in enumerate(planning.MODELS)]
    counted = replace(planning.request(workloads), devices={"v100": planning.v100(count=2)})
    registry.strategy("inss", policy="none").plan(counted)
    plan = planning.planned("joint", workloads, latency="ours", rule=Rule.P99)
    simulate(plan, {"v100": planning.v100("ours").latency}, Settings(seconds=1.0))
    problem = inss_instances.sample(np.random.default_rng(1), tables(), 4, 2)
    episodes = Episodes(Problem.stack([problem]))
    episodes.place(episodes.observe().valid.argmax(axis=1))


if __name__ == "__main__":
    main()
