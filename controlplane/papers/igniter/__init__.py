"""iGniter's greedy placement and the baselines that share it, as published.

igniter    the entry: batches, lower bounds of shares, one plan per GPU type
placement  Alg 1 and 2 and the baselines as one loop over arrays
first_fit  FFD+ and FFD++
gslice     GSLICE+
"""
