"""Proofs about plans. Nothing that makes a plan imports this package; `--prove` and benches do.

prove              the entry: a plan with its precise lower bound, or the best plan of a small case
lower_bound        what no plan can cost less than
fastest_times      times beside the least harmful neighbours
interference       what the partitions of a GPU do to each other
gpu_contents       everything that one GPU may hold, for a small case
queue_judge        the exact queue's word on contents
exact              the best plan of a small case, by integer programming over contents
"""
