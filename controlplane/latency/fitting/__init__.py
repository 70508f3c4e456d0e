"""The parts of which latency models are made.

`surface` predicts times without neighbours, `tables` looks them up. `published` is the frame of a model that
has a table of such times and a formula for interference; `interference` learns from co-location points
instead. `answers` checks questions and makes estimates with their upper quantile.
"""
