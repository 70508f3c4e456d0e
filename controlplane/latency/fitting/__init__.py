"""The parts of which latency models are made.

points        measured solo times, errors on those left out, non-negative least squares
trend         the law of a model's solo time
surface       solo times of one model over share and batch: trend, kriging, monotone tables
tables        those of all models with one look-up, and their pressure on cache and memory
published     the frame of a model that has a table of such times and a formula for interference
interference  slowdown by neighbours, learned from co-location points
kinds         how much of a co-location was measured before
answers       checks questions, makes estimates with their upper quantile
"""
