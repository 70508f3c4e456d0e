"""The latency-aware scheduler (KAIST): fixed GPUs, a batch and a share for each task, efficiency per share.

latency    Eq 4 and 5 (`Exponential`), I(X) of Eq 7 (`SharedMemory`), Wq of Eq 6 (`filling_ms`)
strategy   the entry: placement by demand, then moves and swaps that help
responses  Alg 1 on one GPU: best responses in batch and share (Eq 8, 11 and 12) until none changes
"""
