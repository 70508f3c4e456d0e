"""Proofs about plans. Nothing that makes a plan imports this package; `--prove` and benches do.

prove         the entry: the best plan of a small case, or the proof that a plan is the best
patterns      everything that one GPU may hold, and what the exact queue says of it
closer_bound  of any number of workloads: what no plan costs less than, with what neighbours do to each other:
              the `effects` of one partition on another
"""
