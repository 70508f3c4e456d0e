"""Latency models: how long a batch takes with a share of a GPU beside given neighbours.

`protocol` says what a model answers; `registry` makes a model by its name. `default` is the product's own,
built from `fitting`; those of papers stand in their folders. `queueing` turns execution times into requests'
latencies. `calibration` corrects predictions by observations, `evaluate` compares them with measurements.
Everything is pure: numpy and scipy, no effects.
"""
