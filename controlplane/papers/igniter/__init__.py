"""iGniter (TPDS 34(3)): analytical model and greedy placement, and the baselines that share it, as published.

latency    Eq 1-11 (`Igniter.times`, Eq 11: `active_ms`), the fit of Eq 11 and the refit of the interference
profiling  the coefficients of Table 2 from a GPU's counters and from models beside each other
strategy   the entry: Eq 13, 14, 17 and 18 (`needs_of`), Alg 1 (`place`) and Alg 2 (`_grown`)
gslice     GSLICE+ (Sec. 5.1)
"""
