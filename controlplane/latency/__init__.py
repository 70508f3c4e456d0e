"""Latency models: how long a batch takes with a share of a GPU beside given neighbours.

`protocol` says what a model answers; `registry` makes a model by its name. `models` are built from
`fitting`. `queueing` turns execution times into the latency of requests. `calibration` corrects predictions
by observations, `evaluate` compares them with measurements. Everything is pure: numpy and scipy, no effects.
"""
