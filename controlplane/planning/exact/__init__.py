"""Proofs about plans. Nothing that makes a plan imports this package; `--prove` and benches do.

prove            the entry: the best plan of a small case, or the proof that a plan is the best
exact            integer programming over everything that a GPU may hold
gpu_contents     everything that one GPU may hold
integer_program  the program as matrices
queue_judge      what the exact queue says of the contents of a GPU
"""
