"""InSS: the most goodput of a fixed set of GPUs, by a policy or local search and exact batches (Sec. 3.3, 5).

Start with `strategy`. `problem` is the formulation, `search` one decision, begun by the `policy`.
"""
