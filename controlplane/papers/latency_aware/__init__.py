"""The latency-aware scheduler (KAIST): fixed GPUs, a batch and a share for each task, efficiency per share.

strategy   the entry: placement by demand, then moves and swaps that help
responses  Alg 1 on one GPU: best responses in batch and share until none changes
"""
