"""iGniter's greedy placement and its two first-fit baselines, as published.

igniter    the entry: batches, lower bounds of shares, one plan per GPU type
placement  Alg 1 and 2 and the baselines as one loop over arrays
first_fit  the baselines
"""
