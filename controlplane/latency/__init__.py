"""Latency models: how long a batch takes, at which share, beside which neighbours. Pure numpy and scipy."""
