"""Planners decide which partition of which GPU serves which workload. Values in, values out.

protocol      the question that a plan answers, and what a strategy is
registry      strategies by the names that `--strategy` calls them
judge/        what a plan is expected to do and whether it keeps its promises: the only judge
capacity/     what a share of a GPU can serve, before anything is placed
replan/       what a plan changes about another, and ids that keep changes few
explain/      why a workload got its share, why another one is infeasible
joint/        the default strategy: sharing queues, sizes, places and shadows decided together
exact/        proofs: the best plan of a small case; only `--prove` and benches ask
"""
