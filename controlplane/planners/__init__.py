"""Planners decide which partition of which GPU serves which workload. Values in, values out.

protocol      the question that a plan answers, and what a strategy is
registry      strategies by the names that `--strategy` calls them
evaluation/   what a plan is expected to do and whether it keeps its promises: the only judge
serving/      what a share of a GPU can serve, before anything is placed
replan/       what a plan changes about another, and ids that keep changes few
diagnostics/  why a workload got its share, why another one is infeasible
greedy/       iGniter and its first-fit baselines
joint/        the default strategy: sharing queues, sizes, places and shadows decided together
inss/         the most goodput of a fixed set of GPUs
bounds/       proofs: the best plan of a small case; only `--prove` and benches ask
"""
