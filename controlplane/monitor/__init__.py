"""Measurements of a running fleet: the request log, Triton's statistics, canaries and the host."""
